{{- /* An image in image.registry, unless its name begins with a registry of its own. */ -}}
{{- define "gantry.image" -}}
{{- $registry := default "" .registry | trimSuffix "/" -}}
{{- if and $registry .name (not (regexMatch "^([^/]+[.:][^/]*|localhost)/" .name)) -}}
{{ printf "%s/%s" $registry .name }}
{{- else -}}
{{ .name }}
{{- end -}}
{{- end -}}

{{- define "gantry.name" -}}
{{- if contains "gantry" .Release.Name -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{- else -}}{{ printf "%s-gantry" .Release.Name | trunc 40 | trimSuffix "-" }}{{- end -}}
{{- end -}}

{{- define "gantry.selector" -}}
app.kubernetes.io/name: gantry-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "gantry.labels" -}}
{{ include "gantry.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "gantry.serviceAccount" -}}
{{- default (printf "%s-operator" (include "gantry.name" .)) .Values.serviceAccount.name -}}
{{- end -}}

{{/*
The operator's rights, verb by verb; docs/security.md has the reason for each. It reads Secrets and pods only by watches
on its label, but Kubernetes grants lists and watches by kind only.
*/}}
{{- define "gantry.rules" -}}
- apiGroups: [gantry.dev]
  resources: [brokerclusters]
  verbs: [get, list, watch, patch]
- apiGroups: [gantry.dev]
  resources: [brokerclusters/status, brokerusers/status, brokertopics/status, consumergroups/status]
  verbs: [patch]
# Their finalizers, and the annotation for an offset reset.
- apiGroups: [gantry.dev]
  resources: [brokertopics, consumergroups]
  verbs: [list, watch, patch]
- apiGroups: [gantry.dev]
  resources: [brokerusers]
  verbs: [list, watch]
# Owner references that block deletion ask for this where the API server enforces it.
- apiGroups: [gantry.dev]
  resources: [brokerclusters/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [configmaps, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [get, list, watch, create, patch]
# Secrets of proxies are deleted together with them.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, list, watch, create, patch, delete]
# Label the master. Replace a member after a change of its configuration.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [list, watch, patch, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create, patch]
- apiGroups: [apps]
  resources: [deployments, statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
# The role registry: one Lease per broker group.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list, watch, create, update, patch, delete]
{{- if .Values.analytics.enabled }}
# Reports (spec.analytics) and tables (spec.tables): the schedule, runs, the rights of Spark's driver, its NetworkPolicy.
# The schedule that verifies archives (spec.archive.verify).
- apiGroups: [batch]
  resources: [cronjobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, delete]
# Reports and runs of tables as objects of Apache's Spark operator (engine: SparkApplication).
- apiGroups: [spark.apache.org]
  resources: [sparkapplications]
  verbs: [list, create, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, create]
# An account can only grant rights that it has. These are the driver's rights for its executors.
- apiGroups: [""]
  resources: [pods]
  verbs: [create, get, list, watch, delete, deletecollection, patch]
{{- end }}
{{- end -}}

{{- /* Whether this release writes a definition: it does not exist, or this release made it. */ -}}
{{- define "gantry.ownsCrd" -}}
{{- $live := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" .name -}}
{{- $marks := dig "metadata" "annotations" (dict) $live -}}
{{- $name := get $marks "meta.helm.sh/release-name" -}}
{{- $namespace := get $marks "meta.helm.sh/release-namespace" -}}
{{- or (not $live) (and (eq $name .release.Name) (eq $namespace .release.Namespace)) -}}
{{- end }}
