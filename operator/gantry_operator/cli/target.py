"""The cluster of a command: a local one, or one on Kubernetes; and how a command runs an action on it."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gantry_operator.actions.errors import ActionError
from gantry_operator.cli.errors import CliError, Exit, presented
from gantry_operator.cli.options import on_kubernetes
from gantry_operator.cli.output import Remarks
from gantry_operator.registry.disk_errors import in_words

if TYPE_CHECKING:
    from gantry_operator.actions.target import Target
    from gantry_operator.platforms.local.folder import ClusterFolder

T = TypeVar("T")


def find_target(directory: Path | None, name: str | None, context: str | None, namespace: str | None) -> Target:
    """Local, unless a context or a namespace is given or the command runs as a plug-in of kubectl. Raises CliError."""
    if on_kubernetes(context, namespace):
        if directory is not None:
            raise CliError(
                "--dir is for local clusters; leave it out with --context, --namespace or kubectl", Exit.USAGE
            )
        from gantry_operator.actions.kubernetes_target import KubernetesTarget

        return KubernetesTarget(context, namespace, name, Remarks())
    from gantry_operator.actions.local_target import LocalTarget

    return LocalTarget(find_local(directory, name), Remarks())


def find_local(directory: Path | None, name: str | None) -> ClusterFolder:
    """Find the cluster. Raises CliError."""
    from gantry_operator.platforms.local.folder import ClusterNotFound, find_folder

    try:
        return find_folder(directory, name)
    except ClusterNotFound as error:
        raise CliError(str(error), Exit.NO_CLUSTER) from None


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a command in an event loop. Turns errors of actions and clients into one line. Raises CliError."""
    with closing(work):  # Ctrl-C may come before it has begun.
        return _run_async(work)


def _run_async(work: Coroutine[Any, Any, T]) -> T:
    import asyncio

    try:
        return asyncio.run(work)
    except ActionError as error:
        raise presented(error) from None
    except OSError as error:
        raise CliError(in_words(error)) from None
    except Exception as error:
        text = _in_one_line(error)
        if not text:
            raise
        raise CliError(text) from None


def _in_one_line(error: Exception) -> str:
    """Return an error of a client or of a cluster's folder in words; empty: it is a fault of the program.

    The modules of these errors are imported here: a command that succeeds does not need them all.
    """
    from gantry_broker.broker.migration.errors import MigrationError
    from gantry_broker.client import ClientError
    from gantry_broker.protocol.fields import BodyError
    from gantry_broker.remoting.errors import RemotingError
    from pydantic import ValidationError

    from gantry_operator.cluster import failures
    from gantry_operator.cluster.reach import CannotTell
    from gantry_operator.migration.cutover_steps import Refused
    from gantry_operator.platforms.local.ports import NoPort

    if isinstance(error, NoPort | CannotTell | Refused | MigrationError):
        return str(error)
    if isinstance(error, ClientError | RemotingError | BodyError):
        return failures.in_words(error)
    if not isinstance(error, ValidationError):
        return ""
    if any(e["type"] == "json_invalid" for e in error.errors()):
        return (
            "cluster.json in the cluster's folder is damaged: move it away, and start the cluster with gantry up "
            "and the manifest that it had"
        )
    return f"the cluster's folder holds a manifest of another version: {error}"
