"""Leader decisions of one group: observations in, decisions out, each with its reason.

`decide` is pure. Time, the registry's content and the members' reports are arguments. The group controllers in
`cluster` call it, in local mode and on Kubernetes alike.
"""
