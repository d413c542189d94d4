"""A cluster at two sites that share one archive: which part this member's cluster has, and the file that keeps it.

The control plane says it (`PUT /v1/site`). `generation` rises with each change, so a late request changes nothing. The
member keeps it on its disk, and a start goes on with it:

- Active: an ordinary member.
- Sealed: the cluster hands over. Nothing is appended any more, what it has goes to the archive.
- Standby: it follows the archive, serves reads and refuses writes. It has no role in its group, so no leader.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Literal

import orjson

from gantry_broker.contracts.sites import first_epoch
from gantry_broker.protocol import plausible
from gantry_broker.store.errors import StoreError
from gantry_broker.store.files import atomic_write, fsync_dir
from gantry_broker.store.restored import RESTORED
from gantry_broker.store.sealed import seal, unseal

log = logging.getLogger(__name__)

SiteRole = Literal["Active", "Sealed", "Standby"]
ROLES: Final[tuple[SiteRole, ...]] = ("Active", "Sealed", "Standby")
SITE: Final = "config/site.json"
REFILL: Final = "config/refill.json"
"""In the store's folder when its log has nothing in common with the archive any more: the next start empties it."""
_OF_A_LIFE: Final = ("config/replica.json", "config/members.json", RESTORED)
"""What belongs to one life of a disk in its group. A standby begins another one, as a new incarnation (rule 16)."""


@dataclass(frozen=True, slots=True)
class Site:
    """What the control plane said last."""

    role: SiteRole = "Active"
    generation: int = 0
    token: str = ""
    """Sealed: of the hand-over, written to the archive behind the last byte."""
    origin: str = ""
    """Active after a promotion: its name. Members with the same one have prefixes of one log."""
    origin_end: int = 0
    """Where that log ended: a member that has less of it lacks records."""
    superseded: str = ""
    """Why it takes no writes although it is active: another site was promoted meanwhile."""

    @property
    def is_standby(self) -> bool:
        return self.role == "Standby"

    def refusal(self) -> str:
        """Why it takes no writes; "" when it does."""
        if self.role == "Standby":
            return "this cluster is a standby, which follows the archive of another one: send to that cluster"
        if self.role == "Sealed":
            return "this cluster hands over to another site: send to that cluster"
        return self.superseded


def load_site(store: Path, *, follows: bool) -> Site:
    """Read what a disk knows. `follows`: the configuration makes a new member a standby, and never one with a part in
    its group: what its archive lacks would be truncated. Raises StoreError.
    """
    path = store / SITE
    try:
        value = orjson.loads(unseal(path.read_bytes()))
        role = value["role"]
        if role not in ROLES:
            raise ValueError(f"role {role!r}")
        return Site(
            role,
            plausible.version("generation", value["generation"]),
            str(value["token"]),
            str(value["origin"]),
            plausible.offset("origin_end", value["origin_end"]),
            str(value["superseded"]),
        )
    except FileNotFoundError:
        return Site("Standby" if follows and not (store / "config/replica.json").exists() else "Active")
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path}: {error!r}; empty the member's disk") from error


def save_site(store: Path, site: Site) -> None:
    """Write it; it is durable on return. Raises OSError."""
    path = store / SITE
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, seal(orjson.dumps(asdict(site))), durable=True)


def prepare_disk(store: Path, site: Site) -> None:
    """Before a start: empty a disk that must be filled once more, and end its life in the group of a standby.

    Raises OSError.
    """
    config = store / "config"
    if (store / REFILL).exists():
        log.warning("the log has nothing in common with the archive any more: the disk is emptied and filled again")
        for path in store.iterdir():
            if path.is_dir() and path != config:
                shutil.rmtree(path)
        for path in config.iterdir() if config.is_dir() else ():
            if path.name not in (Path(SITE).name, Path(REFILL).name):
                path.unlink() if path.is_file() else shutil.rmtree(path)
        for path in store.iterdir():
            if path.is_file() and path.name != "lock":
                path.unlink()
        fsync_dir(config)
        # Last: a start after a kill begins again, and takes no half-emptied disk for a log.
        (store / REFILL).unlink()
        fsync_dir(config)
    if site.is_standby and config.is_dir():
        for name in _OF_A_LIFE:
            (store / name).unlink(missing_ok=True)
        fsync_dir(config)


def mark_origin(store: Path, site: Site, end: int, last_epoch: int) -> None:
    """At the first start after a promotion: the log up to `end` is of another cluster, as after a restore."""
    if site.role != "Active" or not site.origin or (store / "config/replica.json").exists():
        return
    path = store / RESTORED
    path.parent.mkdir(parents=True, exist_ok=True)
    epoch = first_epoch(last_epoch, site.origin) - 1
    atomic_write(path, seal(orjson.dumps({"origin": site.origin, "end": end, "epoch": epoch})), durable=True)


def next_site(held: Site, requested: Site) -> Site:
    """Return what a member holds after a request: an older one changes nothing."""
    if requested.generation <= held.generation:
        return held
    return replace(requested, superseded="")
