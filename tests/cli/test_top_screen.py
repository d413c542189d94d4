"""The lines of `gantry top`, and its keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gantry_operator.cli.next_steps import Step
from gantry_operator.cli.top import what_is_unknown
from gantry_operator.cli.top_screen import Choice, duration, pressed, screen, shares
from gantry_operator.cluster.live import ConsumerLag, MemberLine, Rates, View
from rich.console import Console

WHEN = "2026-11-25T08:28:43Z"
BUSY = Rates(12_345, 4.25, 1 << 20, 2048)


def line(name: str, role: str = "Slave", lag: int | None = 0, reason: str = "", used: float = 0.5) -> MemberLine:
    return MemberLine(name, "a", role, 3, lag, not reason, used, False, BUSY if role == "Master" else None, reason)


def view(members: int = 3, groups: int = 2, events: int = 4) -> View:
    lines = [line("demo-a-0", "Master"), line("demo-a-1", lag=10), line("demo-a-2", "Unknown", None, "refused")]
    lines += [line(f"a-cluster-with-a-very-long-name-indeed-b-{n}") for n in range(members - 3)]
    return View(
        cluster="demo",
        phase="Degraded",
        members=tuple(lines[:members]),
        rates=BUSY,
        consumers=tuple(ConsumerLag(f"group-{n}", 1000 - n, n, 61_000 + n) for n in range(groups)),
        blind=(),
        last_failover=f"{WHEN} failover from demo-a-0 to demo-a-2 in 51 ms: the process of demo-a-0 is gone",
        events=tuple((WHEN, "FailoverCompleted", f"event {n} " * 12, "Normal") for n in range(events)),
    )


def drawn(v: View, width: int = 80, height: int | None = 24, choice: Choice | None = None, steps: int = 0) -> list[str]:
    said = [Step(f"demo-a-{n}", f"less /a/long/path/of/a/folder/log/demo-a-{n}.log " * 3) for n in range(steps)]
    console = Console(width=width, height=height or 100, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(screen(v, said, choice or Choice(), "12:00:01", width, height))
    return captured.get().rstrip("\n").split("\n")


def test_a_view_without_a_groups_master_is_no_whole_answer() -> None:
    assert what_is_unknown(view()) == ""
    assert what_is_unknown(replace(view(), blind=("a", "b"))) == (
        "group a has no master: cannot tell; group b has no master: cannot tell"
    )
    assert what_is_unknown(replace(view(), problem="the API server is away")) == (
        "the figures are old: the API server is away"
    )


@pytest.mark.parametrize("width", [40, 80, 132])
@pytest.mark.parametrize("height", [5, 10, 24, 50])
@pytest.mark.parametrize(("members", "groups", "events", "steps"), [(3, 2, 4, 0), (40, 90, 20, 2), (1, 0, 0, 1)])
def test_it_fits_every_terminal(width: int, height: int, members: int, groups: int, events: int, steps: int) -> None:
    lines = drawn(view(members, groups, events), width, height, steps=steps)
    assert len(lines) <= height
    assert max(len(text) for text in lines) <= width


def test_80_by_24_shows_all_that_matters() -> None:
    lines = drawn(view())
    text = "\n".join(lines)
    assert lines[0].startswith("demo  Degraded  2/3 in sync  in 12,345/s 1.0 MiB/s  out 4.2/s 2.0 KiB/s")
    assert "failover from demo-a-0 to demo-a-2 in 51 ms" in text
    assert "the process of demo-a-0 is gone" in " ".join(text.split())
    for head in ("MEMBER*", "ROLE", "EPOCH", "LAG", "SYNC", "DISK", "IN/S", "OUT/S", "CONSUMER GROUP", "UNREAD*"):
        assert head in text
    assert any(text.split()[:9] == ["demo-a-0", "a", "Master", "3", "0", "B", "yes", "50%", "12,345"] for text in lines)
    assert any("demo-a-2" in text and " no " in text and "refused" in text for text in lines)
    assert "FailoverCompleted  08:28:43  event 0" in text
    assert lines[-1].startswith("q quit")


def test_40_columns_show_the_state_of_each_member() -> None:
    lines = drawn(view(), 40)
    (heads,) = (text.split() for text in lines if text.startswith("MEMBER"))
    assert heads == ["MEMBER*", "ROLE", "LAG", "SYNC", "STATE"]
    assert any(text.split() == ["demo-a-0", "Master", "0", "B", "yes", "ok"] for text in lines)
    assert any(text.startswith("demo-a-2 ") and " no " in text and "refus" in text for text in lines)


def test_what_does_not_fit_is_counted() -> None:
    lines = drawn(view(members=12, groups=50))
    assert "and 49 more" in lines or any(text.startswith("and ") and text.endswith(" more") for text in lines)
    shown = sum(text.startswith("group-") for text in lines)
    more = next(int(text.split()[1]) for text in reversed(lines) if text.startswith("and "))
    assert shown + more == 50
    assert drawn(view(members=12, groups=50), height=None).count("and 1 more") == 0


def test_a_long_name_keeps_its_end() -> None:
    text = "\n".join(drawn(view(members=4)))
    assert "indeed-b-0" in text
    assert "…" in text


def test_lines_are_divided_by_need() -> None:
    assert shares(100, [5, 4, 10]) == [5, 4, 10]
    assert shares(12, [5, 4, 10]) == [5, 4, 3]
    assert shares(9, [50, 50, 50]) == [3, 3, 3]
    assert shares(8, [50, 50, 50]) == [5, 3, 0]
    assert shares(2, [50, 50, 50]) == [0, 0, 0]
    assert shares(20, [5, 3, 0]) == [5, 3, 0]


def test_keys_sort_pause_and_quit() -> None:
    choice = pressed(Choice(), "s")
    assert (choice.members, choice.groups) == ("lag", "lag")
    names = [text.split()[0] for text in drawn(view(), choice=choice) if text.startswith("demo-a")]
    assert names == ["demo-a-2", "demo-a-1", "demo-a-0"], "an unknown lag first, then the largest"
    for _ in range(3):
        choice = pressed(choice, "s")
    assert choice.members == "name"
    assert pressed(pressed(choice, "g"), "g").groups == "name"
    assert pressed(choice, "x") == choice
    paused = pressed(choice, " ")
    assert "PAUSED" in drawn(view(), choice=paused, width=60)[0], "also in a narrow terminal"
    assert not pressed(paused, " ").paused
    assert all(pressed(choice, key).quit for key in ("q", "\x03"))


def test_an_unknown_lag_is_said() -> None:
    v = view(groups=0)
    assert "none has read from this cluster yet" in drawn(v)
    blind = View(v.cluster, v.phase, v.members, None, (), ("a",), "", ())
    assert "without group a: no master answers" in drawn(blind)


def test_durations_for_people() -> None:
    said = [duration(ms) for ms in (0, 999, 1000, 119_999, 120_000, 7_200_000, 172_800_000)]
    assert said == ["0 ms", "999 ms", "1 s", "119 s", "2 min", "2 h", "2 d"]
