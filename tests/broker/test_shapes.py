"""The properties of plain messages are checked once for all that differ in their unique key, and give the same."""

from __future__ import annotations

import random

from gantry_broker.broker.send.sender import _without_wait
from gantry_broker.broker.send.shapes import A_SECOND, MOST, UNIQUE, Shapes

SUFFIX = "CLUSTER\x01demo"
PIECES = [
    "WAIT\x01true", "TAGS\x01TagA", "a\x01b", "MY_UNIQ_KEY\x01x", "UNIQ_KEY\x01second", "b\x01", "\x01c",
    "d\x01UNIQ_KEY", "e\x01f\x01g", "UNIQ_KEY\x01",
]  # fmt: skip


def stored(text: str, props: dict[str, str]) -> str:
    """What the log gets, by the way of a message that no shape is known for."""
    text = _without_wait(text) if "WAIT" in props else text
    return text + SUFFIX if not text or text[-1] == "\x02" else text + "\x02" + SUFFIX


def parsed(text: str) -> dict[str, str]:
    return dict([piece.split("\x01", 1) for piece in text.split("\x02") if piece])  # type: ignore[misc]


def test_a_known_shape_gives_what_a_look_at_all_properties_gives() -> None:
    rng = random.Random(40)
    hits = 0
    for _ in range(4_000):
        shapes = Shapes()
        pieces = rng.sample(PIECES, rng.randrange(4))
        pieces.insert(rng.randrange(len(pieces) + 1), "UNIQ_KEY\x01{}")
        form = "\x02".join(pieces) + rng.choice(["", "\x02", "\x02\x02"])
        first = form.replace("{}", "AAAA")
        props = parsed(first)
        shapes.learn(first, props.get("UNIQ_KEY", ""), stored(first, props), 7, 1_000)
        for unique in ("BB", "", "C\x01D", "WAIT\x01true", UNIQUE):
            text = form.replace("{}", unique)
            before, _, rest = text.partition(UNIQUE)
            found, _, after = rest.partition("\x02")
            shape = shapes.known.get((before, after))
            if shape is None or not found:
                continue
            hits += 1
            props = parsed(text)
            assert props["UNIQ_KEY"] == found
            assert f"{shape[0]}{found}{shape[1]}" == stored(text, props)
            assert shape[2] == 7
    assert hits > 1_000


def test_properties_that_are_never_the_same_take_little_memory_and_are_learnt_seldom() -> None:
    shapes = Shapes()
    for number in range(1_000):
        shapes.learn(f"a\x01{number}\x02UNIQ_KEY\x01k", "k", f"a\x01{number}\x02UNIQ_KEY\x01k\x02", 0, 1_000)
    assert len(shapes.known) == A_SECOND
    for number in range(10_000):
        shapes.learn(f"a\x01{number}\x02UNIQ_KEY\x01k", "k", f"a\x01{number}\x02UNIQ_KEY\x01k\x02", 0, number * 1_000)
    assert len(shapes.known) == MOST
    shapes = Shapes()
    shapes.learn("UNIQ_KEY\x01k\x02a\x01" + "x" * 2_000, "k", "UNIQ_KEY\x01k\x02a\x01" + "x" * 2_000, 0, 1_000)
    assert not shapes.known
