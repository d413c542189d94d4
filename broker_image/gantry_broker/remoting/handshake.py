"""The handshake that opens a connection between members, sans-I/O.

    client                                  server
    hello: version, identity, nonce    ->
                                       <-   challenge: version, identity, nonce
    proof: MAC of the client           ->
                                       <-   accepted: MAC of the server

A MAC is HMAC-SHA256 over version, side, both identities and both nonces, with a key that is derived from the cluster's
token. The token itself never travels. The client proves itself first, so a stranger learns no MAC. Steps are remoting
frames of GantryCode.HANDSHAKE; one is sent only after the answer to the one before.

It proves the identity of both ends when the connection begins. It does not protect later bytes.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import quote

from gantry_broker.protocol.codes import GantryCode, ResponseCode
from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.frame import Frame, FrameDecoder, FrameError, encode_frame
from gantry_broker.protocol.plausible import MAX_MEMBER

VERSION: Final = 1
MAX_HANDSHAKE_FRAME: Final = 4096
"""Bytes of the largest frame of a handshake, its length field included."""
NONCE_BYTES: Final = 32
MAC_BYTES: Final = 32
MAX_NAME: Final = 255
"""Characters of the longest name of a cluster or group."""
URI_SCHEME: Final = "gantry"
NAME_SERVER_URI: Final = "nameserver"
"""The path of a NameServer's URI. A broker group of this name has certificates of its members only."""
_KEY_LABEL: Final = b"gantry handshake between members, key 1"
_MESSAGE_LABEL: Final = b"gantry handshake between members, proof"
_LENGTH_FIELD: Final = 4

Reason = Literal["malformed", "identity", "token", "token_file", "certificate", "timeout", "crowded", "ended"]
"""Why a handshake failed, as metrics name it."""
Token = Callable[[], bytes]
"""Returns the cluster's present token. Raises HandshakeError when there is none."""


class HandshakeError(Exception):
    """The connection must end. `answer` is sent before that; empty: nothing."""

    def __init__(self, reason: Reason, text: str, answer: bytes = b"") -> None:
        super().__init__(text)
        self.reason: Reason = reason
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Identity:
    """One end of a connection: a member of a group, or a NameServer, whose `group` is empty."""

    cluster: str
    group: str
    member: int

    @classmethod
    def of_name_server(cls, cluster: str) -> Identity:
        return cls(cluster, "", 0)

    @property
    def is_name_server(self) -> bool:
        return not self.group

    @property
    def uris(self) -> tuple[str, ...]:
        """Return the names of this end in a certificate (SAN URI), the most exact one first; one of them is enough."""
        cluster, group = quote(self.cluster, safe=""), quote(self.group, safe="")
        if self.is_name_server:
            return (f"{URI_SCHEME}://{cluster}/{NAME_SERVER_URI}",)
        whole_group = f"{URI_SCHEME}://{cluster}/{group}"
        own = f"{whole_group}/{self.member}"
        return (own,) if group == NAME_SERVER_URI else (own, whole_group)

    def __str__(self) -> str:
        if self.is_name_server:
            return f"a NameServer of cluster {self.cluster}"
        return f"member {self.member} of {self.cluster}/{self.group}"


class _End:
    """The state that both ends have."""

    def __init__(self, me: Identity, token: Token, nonce: bytes) -> None:
        """`nonce`: `NONCE_BYTES` new random bytes."""
        self.peer: Identity | None = None
        """The other end, once it has proved itself."""
        self._me = me
        self._token = token
        self._nonce = nonce
        self._claimed: Identity | None = None
        self._decoder = FrameDecoder(MAX_HANDSHAKE_FRAME - _LENGTH_FIELD)


class HandshakeClient(_End):
    """The end that connects. Send `hello` first; give received bytes to `receive`."""

    def __init__(self, me: Identity, token: Token, nonce: bytes) -> None:
        super().__init__(me, token, nonce)
        self._expected = b""

    def hello(self) -> bytes:
        return encode_frame(Frame(GantryCode.HANDSHAKE, 1, ext=_introduction("hello", self._me, self._nonce)))

    def receive(self, data: bytes) -> bytes:
        """Return the bytes to send next; empty: nothing. Raises HandshakeError."""
        frame = _next_frame(self._decoder, data, done=self.peer is not None)
        if frame is None:
            return b""
        proving = self._claimed is not None
        if not frame.is_response or frame.opaque != 1 + proving:
            raise HandshakeError("malformed", "the other end did not answer the handshake")
        if frame.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise HandshakeError("malformed", "the port is not one between members: it rejects the handshake")
        if frame.code != ResponseCode.SUCCESS:
            raise HandshakeError("identity", f"refused by the other end: {(frame.remark or '')[:300]}")
        if not proving:
            return self._prove(frame)
        if not hmac.compare_digest(_bytes(frame, "accepted", "mac", MAC_BYTES), self._expected):
            raise HandshakeError("token", "the other end does not know the token of the cluster")
        self.peer = self._claimed
        return b""

    def _prove(self, frame: Frame) -> bytes:
        server, nonce = _introduced(frame, "challenge")
        if server.cluster != self._me.cluster or not (server.is_name_server or server.group == self._me.group):
            raise HandshakeError("identity", f"the other end is {server}, this is {self._me}")
        if server == self._me:
            raise HandshakeError("identity", f"the other end is {server}, and so is this end")
        key = derive_key(self._token())
        self._claimed = server
        self._expected = proof(key, "server", self._me, server, self._nonce, nonce)
        mac = proof(key, "client", self._me, server, self._nonce, nonce)
        return encode_frame(Frame(GantryCode.HANDSHAKE, 2, ext={"step": "proof", "mac": mac.hex()}))


class HandshakeServer(_End):
    """The end that accepts."""

    def __init__(self, me: Identity, token: Token, nonce: bytes) -> None:
        super().__init__(me, token, nonce)
        self._client_nonce = b""

    def receive(self, data: bytes) -> bytes:
        """Return the bytes to send next; empty: nothing. Raises HandshakeError."""
        frame = _next_frame(self._decoder, data, done=self.peer is not None)
        if frame is None:
            return b""
        if frame.code != GantryCode.HANDSHAKE or frame.flag:
            raise HandshakeError("malformed", f"request {frame.code} came before the handshake")
        return self._challenge(frame) if self._claimed is None else self._accept(frame)

    def _challenge(self, frame: Frame) -> bytes:
        client, nonce = _introduced(frame, "hello")
        why_not = self._why_not(client)
        if why_not:
            raise _refused("identity", frame, why_not)
        self._claimed, self._client_nonce = client, nonce
        ext = _introduction("challenge", self._me, self._nonce)
        return encode_frame(Frame.response_to(frame, ResponseCode.SUCCESS, ext=ext))

    def _why_not(self, client: Identity) -> str:
        if client.is_name_server or client.cluster != self._me.cluster:
            return f"this is {self._me}, not for {client}"
        if self._me.is_name_server:
            return ""
        if client.group != self._me.group:
            return f"this is {self._me}, not for {client}"
        return f"this is {self._me} itself" if client.member == self._me.member else ""

    def _accept(self, frame: Frame) -> bytes:
        client = self._claimed
        assert client is not None
        mac = _bytes(frame, "proof", "mac", MAC_BYTES)
        try:
            key = derive_key(self._token())
        except HandshakeError as error:
            raise _refused(error.reason, frame, "this end cannot read its token", str(error)) from None
        if not hmac.compare_digest(mac, proof(key, "client", client, self._me, self._client_nonce, self._nonce)):
            raise _refused("token", frame, f"{client} does not know the token of the cluster")
        self.peer = client
        mac = proof(key, "server", client, self._me, self._client_nonce, self._nonce)
        ext = {"step": "accepted", "mac": mac.hex()}
        return encode_frame(Frame.response_to(frame, ResponseCode.SUCCESS, ext=ext))


def derive_key(token: bytes) -> bytes:
    """Return the key of the handshake. The token has other uses, so no proof of this handshake is valid elsewhere."""
    return hmac.digest(token, _KEY_LABEL, "sha256")


def proof(
    key: bytes,
    side: Literal["client", "server"],
    client: Identity,
    server: Identity,
    client_nonce: bytes,
    server_nonce: bytes,
) -> bytes:
    """Return the MAC of one side."""
    parts = [_MESSAGE_LABEL, b"%d" % VERSION, side.encode()]
    for end in (client, server):
        parts += [end.cluster.encode(), end.group.encode(), b"%d" % end.member]
    parts += [client_nonce, server_nonce]
    return hmac.digest(key, b"".join(len(part).to_bytes(4, "big") + part for part in parts), "sha256")


def _introduction(step: str, me: Identity, nonce: bytes) -> dict[str, str]:
    return {
        "step": step,
        "version": str(VERSION),
        "cluster": me.cluster,
        "group": me.group,
        "member": str(me.member),
        "nonce": nonce.hex(),
    }


def _introduced(frame: Frame, step: str) -> tuple[Identity, bytes]:
    """Return identity and nonce of the other end. Raises HandshakeError."""
    nonce = _bytes(frame, step, "nonce", NONCE_BYTES)
    ext = frame.ext
    if ext.get("version") != str(VERSION):
        text = f"version {ext.get('version', '')[:20]!r} of the handshake is not known, only {VERSION}"
        raise HandshakeError("malformed", text) if frame.is_response else _refused("malformed", frame, text)
    cluster, group, member = ext.get("cluster", ""), ext.get("group", ""), ext.get("member", "")
    fits = 0 < len(cluster) <= MAX_NAME and len(group) <= MAX_NAME and (cluster + group).isprintable()
    number = whole_number(member, 0, MAX_MEMBER)
    if not fits or number is None:
        raise HandshakeError("malformed", "the handshake names an impossible member")
    return Identity(cluster, group, number), nonce


def _bytes(frame: Frame, step: str, name: str, size: int) -> bytes:
    """Return a field of a step as bytes. Raises HandshakeError."""
    text = frame.ext.get(name, "")
    if frame.ext.get("step") != step or len(text) != 2 * size or not text.isascii():
        raise HandshakeError("malformed", f"expected {step} with {size} bytes of {name}")
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != size:  # fromhex skips spaces
        raise HandshakeError("malformed", f"{step}: {name} is not hexadecimal")
    return value


def _next_frame(decoder: FrameDecoder, data: bytes, *, done: bool) -> Frame | None:
    """Return the one frame of a step; None: it is not complete. Raises HandshakeError."""
    if decoder.held + len(data) > MAX_HANDSHAKE_FRAME:
        raise HandshakeError("malformed", f"one step of the handshake has over {MAX_HANDSHAKE_FRAME} bytes")
    try:
        frames = decoder.feed(data)
    except FrameError as error:
        raise HandshakeError("malformed", f"not a frame of a handshake: {error.reason[:200]}") from None
    if done or len(frames) > 1 or (frames and decoder.held):
        raise HandshakeError("malformed", "there are bytes after one step of the handshake")
    return frames[0] if frames else None


def _refused(reason: Reason, frame: Frame, remark: str, text: str = "") -> HandshakeError:
    """Return a refusal with an answer for the other end; `text` is for the log of this end."""
    answer = encode_frame(Frame.response_to(frame, ResponseCode.NO_PERMISSION, remark))
    return HandshakeError(reason, text or remark, answer)
