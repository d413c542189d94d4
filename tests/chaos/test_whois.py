"""Sockets are found by the kernel's diagnosis, and by /proc where that is missing."""

from __future__ import annotations

import os
import socket

import pytest

from tests.chaos import whois


@pytest.mark.parametrize("diagnosis", [True, False])
def test_a_socket_and_its_process_are_found(diagnosis: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not diagnosis:
        monkeypatch.setattr(whois, "_has_sock_diag", lambda: False)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert whois.listening([port]) == {}
        server.listen()
        assert whois.listening([port]) == {port: str(os.fstat(server.fileno()).st_ino)}
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, peer = server.accept()
            inode = whois.inode_of(peer[1], port)
            assert inode == str(os.fstat(client.fileno()).st_ino)
            assert whois.inode_of(port, peer[1]) == str(os.fstat(accepted.fileno()).st_ino)
            assert whois.owner(inode, {1 << 30: "nobody", os.getpid(): "me"}) == "me"
            assert whois.owner("0", {os.getpid(): "me"}) == "other"
            assert not whois.peer_is_gone(accepted)
        with accepted:
            assert accepted.recv(1) == b""
            assert whois.peer_is_gone(accepted)
        assert whois.inode_of(1, port) is None
