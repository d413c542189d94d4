"""Pulls that are recognised by the template of an earlier one: the same frames as from the full parser."""

from __future__ import annotations

import json
import random

import pytest
from gantry_broker.protocol import repeated_pulls
from gantry_broker.protocol.frame import _LOOK_AFTER, Frame, FrameDecoder, FrameError, RepeatedPull
from gantry_broker.protocol.repeated_pulls import MAX_LAYOUTS, MAX_SAMPLE, MAX_TEMPLATES, Layout, learn, templates

from tests.fuzz import corpus

JAVA_4 = (
    '{"code":11,"extFields":{"queueId":"%s","maxMsgNums":"32","sysFlag":"3","suspendTimeoutMillis":"15000",'
    '"commitOffset":"%s","topic":"Orders","queueOffset":"%s","expressionType":"TAG","subVersion":"1795240234041",'
    '"consumerGroup":"CG"},"flag":0,"language":"JAVA","opaque":%s,"serializeTypeCurrentRPC":"JSON","version":399}'
)
LITE = (
    '{"code":361,"extFields":{"queueId":"%s","commitOffset":"%s","subscription":"*","suspendTimeoutMillis":"20000",'
    '"bname":"broker-a","sysFlag":"22","expressionType":"TAG","ReqT":"0","topic":"LabTopic","consumerGroup":"CG_lite",'
    '"maxMsgNums":"10","queueOffset":"%s","subVersion":"0","maxMsgBytes":"2147483647"},"flag":0,"language":"JAVA",'
    '"opaque":%s,"serializeTypeCurrentRPC":"JSON","version":513}'
)
FIELDS_LAST = (
    '{"code":11,"flag":0,"language":"PYTHON","opaque":%s,"serializeTypeCurrentRPC":"JSON","version":407,"extFields":'
    '{"consumerGroup":"CG","topic":"T","queueId":"%s","queueOffset":"%s","maxMsgNums":"1","sysFlag":"0",'
    '"commitOffset":"%s"}}'
)
FORMS = [JAVA_4, LITE, FIELDS_LAST]
SIGNED = JAVA_4.replace('"topic"', '"AccessKey":"orders","Signature":"c2lnbmF0dXJl","topic"')


@pytest.fixture(autouse=True)
def nothing_learnt() -> None:
    templates.clear()


Outcome = tuple[list[Frame], str | None, int | None]


def pull(form: str, *numbers: object) -> bytes:
    return corpus.frame((form % (numbers or (1, 2, 3, 4))).encode())


def taught(form: str) -> FrameDecoder:
    """A decoder that recognises this form."""
    decoder = FrameDecoder()
    for _ in range(2 * _LOOK_AFTER):
        [frame] = decoder.feed(pull(form))
    assert type(frame) is RepeatedPull
    return decoder


def outcome(decoder: FrameDecoder, data: bytes) -> Outcome:
    try:
        return decoder.feed(data), None, decoder.held
    except FrameError as error:
        return error.frames, f"{error.reason} {error.opaque} {error.serialize}", None


def assert_same(form: str, data: bytes) -> bool:
    """Whether the last frame of `data` was recognised; checks the frames."""
    quick, full = outcome(taught(form), data), outcome(FrameDecoder(), data)
    recognised = bool(quick[0]) and type(quick[0][-1]) is RepeatedPull
    assert all(type(frame) is Frame for frame in full[0])
    for frame in quick[0]:
        if type(frame) is RepeatedPull:
            names = ("queueId", "queueOffset", "commitOffset")
            wanted = (str(frame.opaque), *(frame.ext[name] for name in names))
            assert frame.template.numbers(frame.groups) == tuple(text.encode() for text in wanted)
    assert quick == full
    assert [list(frame.ext.items()) for frame in quick[0]] == [list(frame.ext.items()) for frame in full[0]]
    return recognised


@pytest.mark.parametrize("form", FORMS)
def test_pulls_with_other_numbers_are_recognised(form: str) -> None:
    for numbers in ((1, 1, 1, 1), (7, 8, 9, 10), (999_999_999, 10**9 - 1, 10**9 - 2, 999_999_999)):
        assert assert_same(form, pull(form, *numbers))
    assert assert_same(form, pull(form) + pull(form, 5, 6, 7, 8))


@pytest.mark.parametrize("form", FORMS)
def test_each_topic_of_a_connection_is_recognised(form: str) -> None:
    decoder, forms = taught(form), [form.replace("CG", f"another-group_{n}") for n in range(3)]
    forms.append(form.replace('"sysFlag":"', '"sysFlag":"1'))
    forms.append(form.replace("CG", "\N{GREEK SMALL LETTER PI}"))
    for other in forms:
        assert not assert_same(form, pull(other)), "nobody has read such a header yet"
        for _ in range(2 * _LOOK_AFTER):
            decoder.feed(pull(other))
    for other in [form, *forms]:
        [frame] = decoder.feed(pull(other, 5, 6, 7, 8))
        assert [frame] == FrameDecoder().feed(pull(other, 5, 6, 7, 8))
        assert type(frame) is RepeatedPull
        assert assert_same(form, pull(other)), "another connection knows it, too"
    templates.clear()
    assert type(decoder.feed(pull(form))[0]) is Frame


@pytest.mark.parametrize("form", FORMS)
def test_unlike_pulls_go_to_the_full_parser(form: str) -> None:
    for number in ("-0", "-1", "1.0", "1e3", "", " 1", "9" * 19, "9" * 400, "\N{ARABIC-INDIC DIGIT ONE}", '1","a":"b'):
        assert not assert_same(form, pull(form, *[number] * 4)), number
    for old, new in (
        ('"code"', ' "code"'), ('"code"', '"\\u0063ode"'), ('"CG', '"\\u0043G'), ('"CG', '"\xe9CG'),
        ('"TAG"', "null"), ('"version":', '"version": '), ('"flag":0', '"flag":2'), ('"flag":0', '"flag":1'),
        ('"flag":0', '"flag":0,"remark":"r"'), ('{"queueId"', '{"topic":"x","queueId"'), ('"topic":', '"topik":'),
        ('"queueOffset":', '"queueId":"5","queueOffset":'), ('"flag":0', '"opaque":9,"flag":0'),
        ('"code":', '"code":1'), ('}', '} '), ('"JAVA"', '"KLINGON"'), ('"sysFlag":"', '"sysFlag":"\x7f'),
        ('"sysFlag":"', '"sysFlag":"\x01'),
    ):  # fmt: skip
        if old in form:
            assert not assert_same(form, pull(form.replace(old, new))), new
    header = (form % (1, 2, 3, 4)).encode()
    assert not assert_same(form, corpus.frame(header, b"body"))
    assert not assert_same(form, corpus.frame(header + b" "))
    assert not assert_same(form, corpus.frame(header, b"", 1))


@pytest.mark.parametrize("number", ["007", "00", "1" * 9, "1" * 10, "2147483647", "2147483648", "9" * 18])
def test_numbers_at_their_limits(number: str) -> None:
    for form in FORMS:
        for place in range(4):
            assert_same(form, pull(form, *[number if place == at else "1" for at in range(4)]))


@pytest.mark.parametrize("form", FORMS)
def test_damaged_pulls_give_what_the_full_parser_gives(form: str) -> None:
    rng = random.Random(f"repeated pulls {form}")
    recognised = 0
    for number in range(6_000):
        good = pull(form, *[rng.choice((0, 1, 9, 10, 99, 12_345, 999_999_999)) for _ in range(4)])
        kind = rng.randrange(4)
        if kind == 0:
            data = corpus.mutate(rng, good)
        elif kind == 1:
            data = corpus.hostile_fields(rng, good) or good
        elif kind == 2:
            header = bytearray(good[8:])
            for _ in range(rng.randint(1, 3)):
                header[rng.randrange(len(header))] = rng.choice(b'0123456789",:{}\\-. eE\x00\x7f\x80azAZ')
            data = corpus.frame(bytes(header))
        else:
            header = bytearray(good[8:])
            at = rng.randrange(len(header))
            piece = header[at : at + rng.randint(1, 60)]
            place = rng.randrange(len(header))
            header[place:place] = piece
            data = corpus.frame(bytes(header))
        try:
            recognised += assert_same(form, data + good if rng.random() < 0.2 else data)
        except AssertionError as error:
            raise AssertionError(f"input {number}: {data!r}") from error
    assert recognised > 100


def test_signed_pulls_are_not_recognised() -> None:
    decoder = FrameDecoder()
    for _ in range(100):
        [frame] = decoder.feed(pull(SIGNED))
        assert type(frame) is Frame
    assert not assert_same(JAVA_4, pull(SIGNED))


@pytest.mark.parametrize(
    "header",
    [
        b'{"code":11,"code":11,"flag":0,"opaque":1,"extFields":{"queueId":"0","queueOffset":"0","commitOffset":"0"}}',
        b'{"code":11,"flag":0,"opaque":1,"extFields":{"queueId":"0","queueId":"1","queueOffset":"0","commitOffset":""}}',
        b'{"code":11,"flag":0,"opaque":1, "extFields":{"queueId":"0","queueOffset":"0","commitOffset":"0"}}',
        b'{"code":11,"flag":0,"opaque":1,"extFields":{"queueId":0,"queueOffset":"0","commitOffset":"0"}}',
        b'{"code":11,"flag":0,"opaque":1,"extFields":{"queueId":"0","queueOffset":"0"}}',
        b'{"code":11,"flag":0,"opaque":1,"extFields":["queueId","queueOffset","commitOffset"]}',
        b'{"code":11,"flag":2,"opaque":1,"extFields":{"queueId":"0","queueOffset":"0","commitOffset":"0"}}',
        b'{"code":12,"flag":0,"opaque":1,"extFields":{"queueId":"0","queueOffset":"0","commitOffset":"0"}}',
        b'{"code":11,"flag":0,"extFields":{"queueId":"0","queueOffset":"0","commitOffset":"0","opaque":"1"}}',
        b'{"code":11,"flag":0,"opaque":1,"x":' + b"[" * 300 + b"]" * 300 + b"}",
        b'{"code":11,"flag":0,"opaque":1,"extFields":{"queueId":"0","queueOffset":"0","commitOffset":"0","x":"'
        + b"x" * MAX_SAMPLE
        + b'"}}',
    ],
)
def test_headers_without_a_layout(header: bytes) -> None:
    assert learn(header) is None


def test_layouts_of_ended_connections_make_room() -> None:
    kept: list[Layout | None] = []
    for number in range(MAX_LAYOUTS + 10):
        kept.append(learn((JAVA_4 % (1, 2, 3, 4)).replace('"topic"', f'"{"f" * number}":"x","topic"').encode()))
    assert len(repeated_pulls._layouts) == MAX_LAYOUTS
    assert None in kept
    kept.clear()
    assert learn((JAVA_4 % (1, 2, 3, 4)).encode()) is not None


def test_templates_are_bounded() -> None:
    for number in range(2 * MAX_TEMPLATES):
        assert learn((JAVA_4 % (1, 2, 3, 4)).replace("CG", f"CG{number}").encode()) is not None
        assert 0 < len(templates) <= MAX_TEMPLATES


def test_a_connection_learns_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[bytes] = []
    layouts = [learn((form % (1, 2, 3, 4)).encode()) for form in FORMS]
    for changing, most in ((1, 1_000 // _LOOK_AFTER), (2, 4)):

        def counted(header: bytes, changing: int = changing) -> Layout | None:
            looks.append(header)
            return layouts[len(looks) % changing]

        monkeypatch.setattr("gantry_broker.protocol.frame.learn", counted)
        looks.clear()
        decoder = FrameDecoder()
        for number in range(1_000):
            decoder.feed(pull(JAVA_4.replace("CG", f"new-{number}")))
        assert 1 <= len(looks) <= most


def test_a_client_that_changes_its_fields_is_recognised_again() -> None:
    decoder = taught(JAVA_4)
    frames = [decoder.feed(pull(LITE))[0] for _ in range(200)]
    assert type(frames[-1]) is RepeatedPull
    assert frames[-1].code == 361
    assert all(frame == frames[0] for frame in frames)


def test_recorded_pulls_have_a_layout() -> None:
    """Those of RocketMQ's Java clients 4.9.7 and 5.5.0."""
    found = 0
    for line in corpus.VECTORS.read_text().splitlines():
        vector = json.loads(line)
        if vector["direction"] != "client->server" or vector["code"] not in (11, 361) or vector["serialize"] != "JSON":
            continue
        data = bytes.fromhex(vector["hex"])
        decoder = FrameDecoder()
        frames = [decoder.feed(data)[0] for _ in range(2 * _LOOK_AFTER)]
        plain = "Signature" not in frames[0].ext and frames[0].ext["expressionType"] == "TAG"
        assert type(frames[-1]) is (RepeatedPull if plain else Frame), data
        assert frames[-1] == frames[0]
        found += plain
    assert found > 3
