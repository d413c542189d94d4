"""Read dead letters, the messages that consumer groups could not process, and send them again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from gantry_broker.client import ClientError, DeadGroup, DeadLetters, ReceivedMessage, SendStatus
from gantry_broker.client.deadletters import Page, origin_topic
from gantry_broker.remoting.errors import RemotingError

from gantry_operator.actions.errors import ActionError
from gantry_operator.actions.message_fields import message_fields
from gantry_operator.actions.target import Target, dead_letters_of


@dataclass(frozen=True, slots=True)
class Choice:
    """A selection of a group's letters. `count`: the maximum number."""

    group: str
    ids: tuple[str, ...]
    topic: str | None
    count: int | None
    waiting_only: bool


async def groups_with_dead_letters(target: Target) -> list[DeadGroup]:
    """List the consumer groups that have dead letters. Raises ActionError."""
    async with dead_letters_of(target) as dead:
        return await dead.groups()


async def read_letters(target: Target, choice: Choice, show: Callable[[ReceivedMessage], None]) -> None:
    """Call `show` with each chosen letter. Raises ActionError."""
    async with dead_letters_of(target) as dead:
        await _group_of(dead, choice.group)
        async with aclosing(_chosen(dead, choice)) as pages:
            async for page in pages:
                for letter in page.letters:
                    show(letter)


async def resend_letters(
    target: Target,
    choice: Choice,
    to: str | None = None,
    patience: float = 30.0,
    dry_run: bool = False,
    way: str | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Send the chosen letters again, to their group or to the topic `to`. `patience`: seconds for one request.

    `way`: how the group consumes. `on_progress` gets the letters that are done, and all. Returns the counts `found` and
    `sent`, and the `problem` that stopped it. Raises ActionError.
    """
    result: dict[str, Any] = {
        "group": choice.group, "to": to or f"group {choice.group}", "found": 0, "sent": 0, "problem": "",
    }  # fmt: skip
    # A mark means "everything before is sent". Only a run over all letters in order may move it.
    marking = not (choice.ids or choice.topic is not None or to is not None or dry_run)
    done = 0
    async with dead_letters_of(target, max(patience, 1.0)) as dead:
        dead_group = await _group_of(dead, choice.group)
        total = choice.count or (dead_group.waiting if choice.waiting_only else dead_group.letters)
        on_progress(done, total)
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
                done += len(page.letters)
                on_progress(done, total)
    return result


async def _send(
    dead: DeadLetters, group: str, letters: list[ReceivedMessage], to: str | None, way: str | None
) -> tuple[int, str]:
    """Return the number of acknowledged letters (SEND_OK), and the error of the first other letter."""
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


async def _group_of(dead: DeadLetters, group: str) -> DeadGroup:
    dead_group = await dead.group(group)
    if dead_group is None and dead.admin.left_out:
        raise ActionError(f"no broker group that answers has dead letters of {group}: cannot tell")
    if dead_group is None:
        raise ActionError(f"group {group} has no dead letters; `gantry dlq list` shows the groups that have")
    return dead_group


async def _chosen(dead: DeadLetters, choice: Choice) -> AsyncGenerator[Page, None]:
    """Pages with only the selected letters. The last one may be shorter than the page that was read."""
    if choice.ids:
        for message_id in choice.ids:
            letters = await dead.find(choice.group, message_id)
            if not letters:
                raise ActionError(f"group {choice.group} has no dead letter with the id {message_id}")
            yield Page(letters[0].queue, letters[-1:], 0)
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
    """Return a letter for JSON."""
    more = {"id": letter.id, "group": group, "originTopic": origin_topic(letter), "tries": letter.reconsume_times}
    return message_fields(letter, more)
