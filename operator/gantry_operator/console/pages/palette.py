"""What the palette finds: topics and consumer groups by a part of the name."""

from typing import Final

from fastapi import APIRouter

from gantry_operator.console.requests import (
    Here,
)

router = APIRouter(prefix="/c/{space}/{name}")

FOUND: Final = 20
"""Names that the palette offers at once."""


@router.get("/find")
async def find(place: Here, q: str = "") -> list[dict[str, str]]:
    """Topics, consumer groups and members for the palette, those whose name begins with `q` first."""
    path, text = place.snapshot.key.path, q.strip().lower()
    tables = place.snapshot.tables
    subjects = [(t.name, "topic", f"{path}/topics/") for t in tables.topics.values() if not t.system]
    subjects += [(g.name, "group", f"{path}/groups/") for g in tables.groups.values() if not g.system]
    hits = [row for row in subjects if text in row[0].lower()]
    hits.sort(key=lambda row: (not row[0].lower().startswith(text), row[0].lower()))
    return [{"name": name, "kind": kind, "path": place_of} for name, kind, place_of in hits[:FOUND]]
