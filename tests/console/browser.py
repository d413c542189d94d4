"""A real browser: the system's Chromium, by Playwright."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.browser import chromium_path

AXE = Path(__file__).parents[1] / "data" / "axe" / "axe.min.js"
PARTS = ("stylesheet", "script", "image", "font")
"""What a page loads, as Playwright calls it."""
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa")


@contextmanager
def browser() -> Iterator[Browser]:
    path = chromium_path()
    with (
        sync_playwright() as driver,
        closing(driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])) as made,
    ):
        yield made


@contextmanager
def person(made: Browser, link: str, **options: Any) -> Iterator[Page]:
    """A page of a new person who has followed the link. At the end: no error, no refused content, no other host."""
    context = made.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(30_000)
    wrong: list[str] = []
    host = link.split("/")[2]
    refused = "Failed to load resource"  # a page may be a refusal, its parts may not
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" and refused not in said.text else 0)
    page.on("requestfailed", lambda sent: wrong.append(sent.url) if sent.resource_type in PARTS else None)
    page.on(
        "response",
        lambda got: wrong.append(got.url) if got.status >= 400 and got.request.resource_type in PARTS else None,
    )
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda sent: wrong.append(sent.url) if sent.url.split("/")[2:3] != [host] else None)
    page.goto(link)
    with closing(context):
        yield page
    assert not wrong, wrong


def accessibility_problems(page: Page, *rules: str) -> list[str]:
    """What axe-core finds on the page by the rules of WCAG 2.1 A and AA; `rules`: only these."""
    page.evaluate(AXE.read_text())
    only = {"type": "rule", "values": rules} if rules else {"type": "tag", "values": RULES}
    found = page.evaluate("only => axe.run(document, {runOnly: only, resultTypes: ['violations']})", only)
    return [
        f"{problem['id']}: {problem['help']}: {node['html'][:200]}: {node['failureSummary'][:300]}"
        for problem in found["violations"]
        for node in problem["nodes"]
    ]


def overflow(page: Page) -> int:
    """Pixels by which the page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
