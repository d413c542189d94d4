"""The list of topics or of consumer groups: searched, sorted and cut into pages alike."""

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from fastapi.responses import Response
from gantry_broker.http.query import WholeNumber

from gantry_operator.console.requests import ClusterRequest, links, page
from gantry_operator.console.rows import N, choose, page_of


class Listing:
    """What the address of a list says."""

    def __init__(
        self,
        q: str = "",
        sort: str = "",
        system: bool = False,
        page_number: Annotated[WholeNumber, Query(alias="page", ge=1, le=1_000_000)] = 1,
    ) -> None:
        self.search, self.sort, self.system, self.page = q, sort, system, page_number


Listed = Annotated[Listing, Depends(Listing)]


def list_page(
    request: Request,
    place: ClusterRequest,
    listed: Listing,
    section: str,
    rows: Iterable[N],
    orders: Mapping[str, Callable[[N], Any]],
) -> Response:
    """Draw a list. The template is SECTION.html."""
    sort = listed.sort if listed.sort.removeprefix("-") in orders else next(iter(orders))
    chosen = choose(rows, orders, listed.search, sort, listed.system)
    return page(
        request, place, f"{section}.html", section, live=True, rows=page_of(chosen, listed.page), q=listed.search,
        sort=sort, system=listed.system, link=links(request),
    )  # fmt: skip
