"""What to do when something is wrong: the one table of hints for `gantry status` and `gantry top`. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from gantry_operator.actions.target import Where
from gantry_operator.api.annotations import PAUSED

MAX_STEPS: Final = 6


class Step(NamedTuple):
    """One hint."""

    about: str
    """The condition, member or group that it is about."""
    do: str
    """What to do: a command where there is one, and what it is for."""


class Hint(NamedTuple):
    """The text of a step on this machine and on Kubernetes; empty: there is nothing to do."""

    local: str
    kubernetes: str


CONDITIONS: Final[Mapping[tuple[str, str, str], Hint]] = {
    ("Available", "False", "ProbePending"): Hint(
        "gantry top (it starts; follow the members)",
        "gantry top {where} (it starts; follow the members)",
    ),
    ("Available", "False", "ProbeFailed"): Hint(
        "less {logs}/supervisor.log (why clients cannot send or read)",
        "{kubectl} describe bc {name} (the events say why clients cannot send or read)",
    ),
    ("Progressing", "False", "InvalidSpec"): Hint(
        "",
        "{kubectl} edit bc {name} (write the field as the message says)",
    ),
    ("Progressing", "False", "Paused"): Hint(
        "",
        "{kubectl} annotate bc {name} " + PAUSED + "- (let changes go on)",
    ),
    ("Degraded", "True", "ReconcileFailed"): Hint(
        "less {logs}/supervisor.log (which step failed)",
        "{kubectl} describe bc {name} (which step failed, and why)",
    ),
    ("Degraded", "True", "NameServersNotReady"): Hint(
        "less {logs}/{first}.log (why the NameServer does not answer)",
        "{kubectl} describe pod {first} (why the NameServer is not ready)",
    ),
    ("Secured", "False", "AuthenticationDisabled"): Hint(
        "",  # On one machine this is the default, and the condition says so.
        "{kubectl} patch bc {name} --type merge "
        '-p \'{{"spec":{{"security":{{"authentication":"Permissive"}}}}}}\' (the first step to signed requests only)',
    ),
    ("Secured", "False", "AuthenticationPermissive"): Hint(
        "gantry up FILE with spec.security.authentication: Enabled (once every client signs)",
        "{kubectl} patch bc {name} --type merge "
        '-p \'{{"spec":{{"security":{{"authentication":"Enabled"}}}}}}\' (once every client signs)',
    ),
    ("CertificatesValid", "False", "Unreadable"): Hint(
        "gantry up (it makes a certificate that is missing again)",
        "{kubectl} get secret {first} -o yaml (it needs tls.crt and tls.key)",
    ),
    ("CertificatesValid", "False", "Expired"): Hint(
        "gantry up (it renews certificates while it runs)",
        "{kubectl} describe bc {name} (why {first} is not renewed; renew it if the Secret is yours)",
    ),
    ("CertificatesValid", "False", "Expiring"): Hint(
        "gantry up (it renews certificates while it runs)",
        "{kubectl} describe bc {name} (why {first} is not renewed; renew it if the Secret is yours)",
    ),
}
"""By type, status and reason of a condition. Other conditions need nothing. MembersNotReady: see MEMBERS."""

MEMBERS: Final[tuple[tuple[str, Hint], ...]] = (
    (
        r"disk is full",
        Hint(
            "free space on the disk of {data} (sends go on by themselves)",
            "{kubectl} edit bc {name} (raise spec.storage.size)",
        ),
    ),
    (
        r"disk failed",
        Hint(
            "gantry debug member {member} (what its store holds; replace the disk)",
            "{kubectl} describe pod {member} (which volume and node; replace the disk)",
        ),
    ),
    (
        r"restor\w+ from the archive",
        Hint(
            "less {logs}/{member}.log (how far its restore is, or why it fails)",
            "{kubectl} logs {member} (how far its restore is, or why it fails)",
        ),
    ),
    (
        r"no NameServer answers",
        Hint(
            "less {logs}/{member}.log (why it reaches no NameServer)",
            "{kubectl} logs {member} (why it reaches no NameServer; a NetworkPolicy?)",
        ),
    ),
    (
        r"\b(401|403|503)\b|token",
        Hint(
            "gantry down && gantry up --detach (it has another token than the cluster)",
            "{kubectl} delete pod {member} (it has another token than Secret {name}-admin)",
        ),
    ),
    (
        r"learner|waits for a new epoch|no assignment|knows no leader|becomes",
        Hint(
            "gantry top (it waits for its place; the events say for what)",
            "gantry top {where} (it waits for its place; the events say for what)",
        ),
    ),
    (
        r"process does not run|refuse",
        Hint(
            "less {logs}/{member}.log (why it ended; `gantry up` starts it again)",
            "{kubectl} logs {member} --previous (why it ended)",
        ),
    ),
    (
        r"ImagePull|ErrImage",
        Hint("", "{kubectl} edit bc {name} (write an image that can be pulled)"),
    ),
    (
        r"Unschedulable|no node|nodes are available",
        Hint("", "{kubectl} describe pod {member} (which node lacks what)"),
    ),
    (
        r"",
        Hint(
            "gantry debug member {member} (what it holds), and less {logs}/{member}.log",
            "{kubectl} describe pod {member} (why it is not ready)",
        ),
    ),
)
"""By the reason of a member that is not ready, as a regular expression: the first that is found counts."""

AWAKE: Final = Hint(
    "gantry up FILE with spec.hibernate: false (it goes on where it stopped)",
    '{kubectl} patch bc {name} --type merge -p \'{{"spec":{{"hibernate":false}}}}\' (it goes on where it stopped)',
)
UNSUPERVISED: Final = "gantry up --detach (nothing restarts a process or fails over meanwhile)"
STOPPED: Final = "kill -CONT {pid} (a signal stopped `gantry up`: nothing restarts a process or fails over meanwhile)"
HANGS: Final = "kill -KILL {pid}; gantry up --detach (if it goes on without an answer; the brokers run on meanwhile)"
MANUAL: Final = "gantry switchover {group} {where} (spec.failover.automatic is false)"
NO_MASTER: Final = Hint(
    "gantry top (the events say for which member the group waits; start that one)",
    "gantry top {where} (the events say for which member the group waits; start that one)",
)
BEHIND: Final = Hint(
    "gantry top (it copies the log, and joins when it has all of it)",
    "gantry top {where} (it copies the log, and joins when it has all of it)",
)
ANALYTICS: Final = "gantry analyze {where} (the last report failed; this one shows its reason)"


def next_steps(resource: Mapping[str, Any], where: Where) -> list[Step]:
    """Return what to do, the most urgent first; empty: nothing is wrong. `resource`: a BrokerCluster and its status."""
    meta = resource["metadata"]
    folder, name = shlex.quote(where.folder), str(meta["name"])
    options = [f"--context {shlex.quote(where.context)}"] if where.context else []
    options.append(f"-n {meta.get('namespace') or 'default'}")
    names = {
        "name": name,
        "kubectl": " ".join(["kubectl", *options]),
        "where": "" if where.folder else " ".join(options),
        "logs": f"{folder}/log",
        "data": f"{folder}/data",
    }
    steps: dict[str, Step] = {}
    for about, text, more in _wanted(resource, bool(where.folder)):
        do = " ".join(text.format(**names, **more).split())
        if do:
            steps.setdefault(do, Step(about, do))
    return list(steps.values())[:MAX_STEPS]


def _wanted(resource: Mapping[str, Any], local: bool) -> Iterator[tuple[str, str, dict[str, str]]]:
    """All hints that apply: what each is about, its text, and further names for it."""
    status = resource.get("status") or {}

    def text(hint: Hint) -> str:
        return hint.local if local else hint.kubernetes

    if status.get("phase") == "Hibernated":
        yield str(resource["metadata"]["name"]), text(AWAKE), {}
        return
    if status.get("supervised") is False:
        silent = status.get("supervisor") or {}
        text_of = UNSUPERVISED if silent.get("pid") is None else STOPPED if silent.get("stopped") else HANGS
        yield "supervisor", text_of, {"pid": str(silent.get("pid"))}
    rows = status.get("members") or []
    for group in dict.fromkeys(str(r["group"]) for r in rows):
        mine = [r for r in rows if r["group"] == group]
        if not any(r["role"] in ("Master", "Standby") for r in mine):
            manual = ((resource.get("spec") or {}).get("failover") or {}).get("automatic") is False
            yield f"group {group}", MANUAL if manual else text(NO_MASTER), {"group": group}
    for r in rows:
        reason = str(r.get("reason") or "")
        if r["role"] == "Standby" and r.get("ready"):
            continue  # Its reason says what it does.
        if reason or r["role"] == "Unknown":
            hint = next(hint for pattern, hint in MEMBERS if re.search(pattern, reason))
            yield str(r["name"]), text(hint), {"member": str(r["name"])}
        elif r["role"] == "Slave" and r.get("inSync") is False:
            yield str(r["name"]), text(BEHIND), {}
    for c in status.get("conditions") or []:
        of_condition = CONDITIONS.get((c["type"], c["status"], c.get("reason", "")))
        if of_condition is not None:
            yield str(c["type"]), text(of_condition), {"first": _first(status, c["type"])}
    if (status.get("analytics") or {}).get("lastResult") == "Failed":
        yield "analytics", ANALYTICS, {}


def _first(status: Mapping[str, Any], kind: str) -> str:
    """Return the name of the first thing that a condition complains of."""
    if kind == "CertificatesValid":
        rows = status.get("certificates") or []
        return str(min(rows, key=lambda r: str(r.get("notAfter") or ""), default={"name": ""})["name"])
    return next((str(s["name"]) for s in status.get("nameServerMembers") or [] if not s.get("ready")), "")
