"""`gantry dlq list`, `read` and `resend`: messages that consumer groups could not process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gantry_broker.client import ClientError, DeadGroup, DeadLetters, ReceivedMessage, SendStatus
from gantry_broker.client.deadletters import WAYS, Page, origin_topic
from gantry_broker.protocol.printable import printable
from gantry_broker.remoting.errors import RemotingError

from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.messages import message_fields
from gantry_operator.cli.output import json_text, note, print_json, print_table, was_complete
from gantry_operator.cli.progress import Progress
from gantry_operator.cli.target import Target, dead_letters_of, run_async


@dataclass(frozen=True, slots=True)
class Choice:
    """A selection of a group's letters. `count`: the maximum number."""

    group: str
    ids: tuple[str, ...]
    topic: str | None
    count: int | None
    waiting_only: bool


def show_groups(target: Target, as_json: bool) -> None:
    """List groups with dead letters. Raises CliError."""
    rows = run_async(_groups(target))
    if as_json:
        print_json(
            [{"group": g.group, "letters": g.letters, "waiting": g.waiting, "last": _time(g.last_ms)} for g in rows]
        )
        return
    if not rows:
        note("no group has dead letters" if was_complete() else "no group that answers has dead letters")
        return
    print_table(
        ("GROUP", "LETTERS", "WAITING", "LAST"),
        [(g.group, g.letters, g.waiting, _time(g.last_ms) or "-") for g in rows],
    )
    note("WAITING: not sent again yet. Read them: gantry dlq read GROUP; send them again: gantry dlq resend GROUP")


async def _groups(target: Target) -> list[DeadGroup]:
    async with dead_letters_of(target) as dead:
        return await dead.groups()


def run_read(target: Target, choice: Choice, as_json: bool) -> None:
    """Print a line for each letter. Raises CliError."""
    shown = 0

    def show(letter: ReceivedMessage) -> None:
        nonlocal shown
        shown += 1
        sys.stdout.write(json_text(letter_fields(choice.group, letter)) + "\n" if as_json else _text(letter))

    run_async(read_letters(target, choice, show))
    sys.stdout.flush()
    note(f"{shown} dead letters of {choice.group}")


async def read_letters(target: Target, choice: Choice, show: Callable[[ReceivedMessage], None]) -> None:
    async with dead_letters_of(target) as dead:
        await _known(dead, choice.group)
        async with aclosing(_chosen(dead, choice)) as pages:
            async for page in pages:
                for letter in page.letters:
                    show(letter)


def run_resend(
    target: Target, choice: Choice, to: str | None, way: str | None, patience: float, dry_run: bool, as_json: bool
) -> None:
    """Send letters again. `way`: how the group consumes. Raises CliError, after printing the counts, when a letter
    could not be sent.
    """
    if way not in (None, *WAYS):
        raise CliError(f"--consume {way}: write pull, or pop for members that use POP or gRPC")
    result = run_async(resend_letters(target, choice, to, patience, dry_run, way))
    if as_json:
        print_json(result)
    elif dry_run:
        note(f"{result['found']} dead letters would be sent to {result['to']}; nothing was sent")
    else:
        note(f"{result['sent']} of {result['found']} dead letters were sent to {result['to']}")
        if not result["found"] and choice.waiting_only:
            note("all were sent again before; --all sends them once more")
    if result["problem"]:
        raise CliError(
            f"stopped after {result['sent']} letters: {result['problem']}. Run it again: it continues from there"
        )


async def resend_letters(
    target: Target, choice: Choice, to: str | None, patience: float, dry_run: bool, way: str | None = None
) -> dict[str, Any]:
    result: dict[str, Any] = {
        "group": choice.group, "to": to or f"group {choice.group}", "found": 0, "sent": 0, "problem": "",
    }  # fmt: skip
    # A mark means "everything before is sent". Only a run over all letters in order may move it.
    marking = not (choice.ids or choice.topic is not None or to is not None or dry_run)
    async with (
        dead_letters_of(target, max(patience, 1.0)) as dead,
    ):
        known = await _known(dead, choice.group)
        total = choice.count or (known.waiting if choice.waiting_only else known.letters)
        with Progress(f"sending dead letters of {choice.group}", total, wanted=not choice.ids) as progress:
            async with aclosing(_chosen(dead, choice)) as pages:
                async for page in pages:
                    result["found"] += len(page.letters)
                    if dry_run and to is None:
                        try:
                            for letter in page.letters:
                                await dead.topic_for(choice.group, letter, way=way)
                        except ClientError as error:
                            result["problem"] = str(error)
                            break
                    if not dry_run:
                        sent, problem = await _send(dead, choice.group, page.letters, to, way)
                        result["sent"] += sent
                        if problem:
                            result["problem"] = problem
                            break
                        if marking:
                            await dead.mark(page)
                    progress.advance(len(page.letters))
    return result


async def _send(
    dead: DeadLetters, group: str, letters: list[ReceivedMessage], to: str | None, way: str | None
) -> tuple[int, str]:
    """The number of acknowledged letters (SEND_OK), and the error of the first other letter."""
    answers = await asyncio.gather(
        *(dead.send_again(group, letter, to=to, way=way) for letter in letters), return_exceptions=True
    )
    sent, problem = 0, ""
    for letter, answer in zip(letters, answers, strict=True):
        if isinstance(answer, (ClientError, RemotingError)):
            problem = problem or f"{letter.id}: {answer}"
        elif isinstance(answer, BaseException):
            raise answer
        elif answer.status is not SendStatus.SEND_OK:
            problem = problem or f"{letter.id}: {answer.status.name}, so it may arrive although it is not promised"
        else:
            sent += 1
    return sent, problem


async def _known(dead: DeadLetters, group: str) -> DeadGroup:
    known = await dead.group(group)
    if known is None and dead.admin.left_out:
        raise CliError(f"no broker group that answers has dead letters of {group}: cannot tell")
    if known is None:
        raise CliError(f"group {group} has no dead letters; `gantry dlq list` shows the groups that have")
    return known


async def _chosen(dead: DeadLetters, choice: Choice) -> AsyncGenerator[Page, None]:
    """Pages with only the selected letters. The last one may be shorter than the page that was read."""
    if choice.ids:
        for message_id in choice.ids:
            found = await dead.find(choice.group, message_id)
            if not found:
                raise CliError(f"group {choice.group} has no dead letter with the id {message_id}", Exit.FAILED)
            yield Page(found[0].queue, found[-1:], 0)
        return
    left = choice.count
    async with aclosing(dead.pages(choice.group, waiting_only=choice.waiting_only)) as pages:
        async for page in pages:
            letters = [x for x in page.letters if choice.topic is None or origin_topic(x) == choice.topic]
            end = page.next_offset
            if left is not None and len(letters) > left:
                letters = letters[:left]
                end = letters[-1].queue_offset + 1 if letters else end
            if letters:
                yield Page(page.queue, letters, end)
            if left is not None:
                left -= len(letters)
                if left <= 0:
                    return


def letter_fields(group: str, letter: ReceivedMessage) -> dict[str, Any]:
    """A letter for JSON."""
    more = {"id": letter.id, "group": group, "originTopic": origin_topic(letter), "tries": letter.reconsume_times}
    return message_fields(letter, more)


def _text(letter: ReceivedMessage) -> str:
    body = letter.body.decode(errors="replace")
    cells = (letter.id, _time(letter.store_ms), origin_topic(letter), str(letter.reconsume_times), body)
    return "\t".join(map(printable, cells)) + "\n"


def _time(unix_ms: int) -> str:
    if unix_ms <= 0:
        return ""
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
