"""The handshake between members as a pure state machine: every wrong order, replay, reflection and damage ends it."""

from __future__ import annotations

import random
from itertools import count

import pytest
from gantry_broker.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, GantryCode, ResponseCode
from gantry_broker.protocol.frame import Frame, FrameDecoder, encode_frame
from gantry_broker.protocol.plausible import MAX_MEMBER
from gantry_broker.remoting.handshake import (
    MAX_HANDSHAKE_FRAME,
    NONCE_BYTES,
    HandshakeClient,
    HandshakeError,
    HandshakeServer,
    Identity,
    derive_key,
    proof,
)

TOKEN = b"the token of the cluster"
ONE, TWO = Identity("demo", "a", 1), Identity("demo", "a", 2)
NAMES = Identity.of_name_server("demo")
_NONCES = count()


def nonce() -> bytes:
    return next(_NONCES).to_bytes(NONCE_BYTES, "big")


def client(me: Identity = ONE, token: bytes = TOKEN, fresh: bytes = b"") -> HandshakeClient:
    return HandshakeClient(me, lambda: token, fresh or nonce())


def server(me: Identity = TWO, token: bytes = TOKEN, fresh: bytes = b"") -> HandshakeServer:
    return HandshakeServer(me, lambda: token, fresh or nonce())


def frame_of(data: bytes) -> Frame:
    (frame,) = FrameDecoder().feed(data)
    return frame


def play(left: HandshakeClient, right: HandshakeServer) -> list[bytes]:
    """Everything that is sent, in order. Raises HandshakeError of either side."""
    sent = [left.hello()]
    while left.peer is None:
        answer = (right if len(sent) % 2 else left).receive(sent[-1])
        if answer:
            sent.append(answer)
        elif right.peer is None:
            raise AssertionError("both wait")
    return sent


@pytest.mark.parametrize("name_server", [False, True], ids=["broker", "NameServer"])
def test_both_ends_learn_the_identity_of_the_other(name_server: bool) -> None:
    left, right = client(), server(NAMES if name_server else TWO)
    sent = play(left, right)
    assert (left.peer, right.peer) == (NAMES if name_server else TWO, ONE)
    assert len(sent) == 4
    assert all(len(data) <= MAX_HANDSHAKE_FRAME for data in sent)
    assert not any(TOKEN in data or TOKEN.hex().encode() in data for data in sent), "the token never travels"


def test_it_works_in_single_bytes() -> None:
    left, right = client(), server()
    data = left.hello()
    for side in (right, left, right, left):
        data = b"".join(side.receive(data[i : i + 1]) for i in range(len(data)))
    assert (left.peer, right.peer) == (TWO, ONE)


@pytest.mark.parametrize("wrong", [b"another token", b"", TOKEN + b" ", TOKEN[:-1]])
def test_a_wrong_token_is_refused_by_both_sides(wrong: bytes) -> None:
    left, right = client(token=wrong), server()
    challenge = right.receive(left.hello())
    with pytest.raises(HandshakeError, match="does not know the token") as refused:
        right.receive(left.receive(challenge))
    assert refused.value.reason == "token"
    assert right.peer is None
    assert frame_of(refused.value.answer).code == ResponseCode.NO_PERMISSION
    with pytest.raises(HandshakeError, match="member 1 of demo/a does not know the token"):
        left.receive(refused.value.answer)
    assert left.peer is None


def test_a_server_that_does_not_know_the_token_is_refused() -> None:
    """It lets everybody in; the client does not take it for a member."""
    left, right = client(), server(token=b"another token")
    hello = left.hello()
    asked = left.receive(right.receive(hello))
    accepted = Frame.response_to(frame_of(asked), 0, ext={"step": "accepted", "mac": "00" * 32})
    with pytest.raises(HandshakeError, match="the other end does not know the token"):
        left.receive(encode_frame(accepted))
    assert left.peer is None


@pytest.mark.parametrize(
    ("me", "other"),
    [
        (Identity("other", "a", 1), TWO),
        (Identity("demo", "b", 1), TWO),
        (TWO, TWO),
        (Identity("other", "a", 1), NAMES),
        (NAMES, TWO),
    ],
)
def test_a_foreign_identity_is_refused_before_its_proof(me: Identity, other: Identity) -> None:
    left, right = client(me), server(other)
    with pytest.raises(HandshakeError, match=r"^this is ") as refused:
        right.receive(left.hello())
    assert refused.value.reason == "identity"
    with pytest.raises(HandshakeError, match="refused by the other end: this is"):
        left.receive(refused.value.answer)


@pytest.mark.parametrize("other", [Identity("other", "a", 2), Identity("demo", "b", 2), ONE])
def test_a_client_gives_no_proof_to_a_member_of_another_group(other: Identity) -> None:
    left = client()
    hello = frame_of(left.hello())
    ext = {
        **hello.ext,
        "step": "challenge",
        "cluster": other.cluster,
        "group": other.group,
        "member": str(other.member),
    }
    with pytest.raises(HandshakeError, match="the other end is"):
        left.receive(encode_frame(Frame.response_to(hello, 0, ext=ext)))


def test_a_proof_is_not_good_twice() -> None:
    """Replayed as a whole to the same server: its nonce is another one."""
    fresh = nonce()
    left = client(fresh=fresh)
    hello, _, asked, _ = play(left, server())
    right = server()
    right.receive(hello)
    with pytest.raises(HandshakeError, match="does not know the token"):
        right.receive(asked)


def test_a_clients_own_messages_are_no_answer_to_it() -> None:
    left = client()
    with pytest.raises(HandshakeError, match="did not answer the handshake"):
        left.receive(left.hello())
    left = client()
    asked = left.receive(server().receive(left.hello()))
    mac = frame_of(asked).ext["mac"]
    back = Frame.response_to(frame_of(asked), 0, ext={"step": "accepted", "mac": mac})
    with pytest.raises(HandshakeError, match="does not know the token"):
        left.receive(encode_frame(back))


def test_a_server_cannot_be_made_to_prove_a_stranger() -> None:
    """Its own proof, and that of another member for another pair, are refused."""
    one, two, three = ONE, TWO, Identity("demo", "a", 3)
    key = derive_key(TOKEN)
    for side, left, right in [
        ("server", one, two),
        ("client", three, two),
        ("client", one, three),
        ("client", two, one),
    ]:
        fresh, own = nonce(), nonce()
        machine = server(two, fresh=own)
        machine.receive(client(one, fresh=fresh).hello())
        mac = proof(key, side, left, right, fresh, own)  # type: ignore[arg-type]
        with pytest.raises(HandshakeError, match="does not know the token"):
            machine.receive(encode_frame(Frame(GantryCode.HANDSHAKE, 2, ext={"step": "proof", "mac": mac.hex()})))


def test_proved_bytes_cannot_be_shifted_between_fields() -> None:
    key, a, b = derive_key(TOKEN), nonce(), nonce()
    ends = [Identity("ab", "c", 1), Identity("a", "bc", 1), Identity("abc", "", 1), Identity("ab", "c1", 1)]
    assert len({proof(key, "client", end, TWO, a, b) for end in ends}) == len(ends)
    assert proof(key, "client", ONE, TWO, a, b) != proof(key, "client", TWO, ONE, a, b)
    assert proof(key, "client", ONE, TWO, a, b) != proof(key, "server", ONE, TWO, a, b)
    assert proof(key, "client", ONE, TWO, a, b) != proof(key, "client", ONE, TWO, b, a)
    assert derive_key(TOKEN) != TOKEN


def altered(data: bytes, **changes: str | None) -> bytes:
    """A step with other fields; None: without it."""
    frame = frame_of(data)
    frame.ext = {k: v for k, v in {**frame.ext, **changes}.items() if v is not None}
    return encode_frame(frame)


@pytest.mark.parametrize(
    "changes",
    [
        {"step": "proof"}, {"step": None}, {"version": "2"}, {"version": None}, {"nonce": "00"}, {"nonce": None},
        {"nonce": "zz" * 32}, {"nonce": " 0" * 32}, {"nonce": "é" * 64}, {"cluster": ""}, {"cluster": "x" * 256},
        {"cluster": "de\nmo"}, {"group": "x" * 256}, {"member": "-1"}, {"member": "x"}, {"member": ""},
        {"member": str(MAX_MEMBER + 1)}, {"member": "9" * 4000}, {"member": "²"}, {"member": None},
    ],
)  # fmt: skip
def test_a_hello_that_none_of_ours_could_send_is_refused(changes: dict[str, str | None]) -> None:
    right = server()
    with pytest.raises(HandshakeError) as refused:
        right.receive(altered(client().hello(), **changes))
    assert refused.value.reason == "malformed"


@pytest.mark.parametrize("mac", [None, "", "00" * 31, "00" * 33, "zz" * 32, "00" * 32])
def test_a_damaged_proof_is_refused(mac: str | None) -> None:
    left, right = client(), server()
    asked = left.receive(right.receive(left.hello()))
    with pytest.raises(HandshakeError):
        right.receive(altered(asked, mac=mac))
    assert right.peer is None


def test_every_wrong_order_is_refused() -> None:
    hello, challenge, asked, accepted = play(client(), server())
    for first in (challenge, asked, accepted):
        with pytest.raises(HandshakeError):
            server().receive(first)
    for second in (hello, challenge, accepted):
        right = server()
        right.receive(hello)
        with pytest.raises(HandshakeError):
            right.receive(second)
    for first in (hello, asked, accepted):
        with pytest.raises(HandshakeError):
            client().receive(first)
    left = client()
    left.receive(server().receive(left.hello()))
    for third in (hello, challenge, asked):
        with pytest.raises(HandshakeError):
            left.receive(third)


def test_nothing_may_follow_a_step() -> None:
    left, right = client(), server()
    with pytest.raises(HandshakeError, match="there are bytes after"):
        right.receive(left.hello() + left.hello())
    right = server()
    with pytest.raises(HandshakeError, match="there are bytes after"):
        right.receive(left.hello() + b"\0")
    left, right = client(), server()
    play(left, right)
    for side in (left, right):
        with pytest.raises(HandshakeError, match="there are bytes after"):
            side.receive(encode_frame(Frame(GantryCode.FETCH, 1)))


@pytest.mark.parametrize("code", [10, GantryCode.FETCH, GantryCode.RAFT, GantryCode.READ_LOG, GantryCode.FORWARD])
def test_another_request_ends_it_unanswered(code: int) -> None:
    with pytest.raises(HandshakeError, match=f"request {int(code)} came before") as refused:
        server().receive(encode_frame(Frame(code, 1)))
    assert (refused.value.reason, refused.value.answer) == ("malformed", b"")


@pytest.mark.parametrize("flag", [FLAG_RESPONSE, FLAG_ONEWAY])
def test_a_hello_is_a_request_that_wants_an_answer(flag: int) -> None:
    frame = frame_of(client().hello())
    frame.flag = flag
    with pytest.raises(HandshakeError):
        server().receive(encode_frame(frame))


def test_frames_have_at_most_4_kib_and_no_more_is_kept() -> None:
    big = frame_of(client().hello())
    big.body = bytes(MAX_HANDSHAKE_FRAME)
    data = encode_frame(big)
    with pytest.raises(HandshakeError, match="4096 bytes"):
        server().receive(data)
    right = server()
    right.receive(data[:8])
    with pytest.raises(HandshakeError, match="4096 bytes"):
        right.receive(data[8 : MAX_HANDSHAKE_FRAME + 1])
    announced = (16 << 20).to_bytes(4, "big") + (64_000).to_bytes(4, "big")
    with pytest.raises(HandshakeError):
        server().receive(announced + b"{" * 5000)


def test_a_port_for_clients_is_named_as_such() -> None:
    left = client()
    answer = Frame.response_to(frame_of(left.hello()), ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")
    with pytest.raises(HandshakeError, match="the port is not one between members"):
        left.receive(encode_frame(answer))


def test_an_end_without_a_token_says_so() -> None:
    def none() -> bytes:
        raise HandshakeError("token_file", "/etc/token cannot be read")

    left = client()
    right = HandshakeServer(TWO, none, nonce())
    asked = left.receive(right.receive(left.hello()))
    with pytest.raises(HandshakeError, match="/etc/token") as refused:
        right.receive(asked)
    assert refused.value.reason == "token_file"
    assert b"/etc/token" not in refused.value.answer, "the other end need not know the path"


@pytest.mark.parametrize("seed", range(8))
def test_no_damage_lets_anybody_in(seed: int) -> None:
    """Steps that were cut, doubled, shuffled or changed in a byte: an error, or nothing, but never a peer."""
    rng = random.Random(seed)
    for _ in range(400):
        left, right = client(token=b"guess"), server()
        steps = [left.hello()]
        try:
            steps.append(right.receive(steps[0]))
            steps.append(left.receive(steps[1]))
        except HandshakeError as error:
            raise AssertionError("the beginning is as it should be") from error
        machine = server()
        try:
            for _ in range(rng.randrange(1, 5)):
                data = bytearray(rng.choice(steps))
                match rng.randrange(4):
                    case 0:
                        data[rng.randrange(len(data))] = rng.randrange(256)
                    case 1:
                        del data[rng.randrange(len(data)) :]
                    case 2:
                        data += rng.randbytes(rng.randrange(20))
                machine.receive(bytes(data))
        except HandshakeError:
            pass
        assert machine.peer is None
