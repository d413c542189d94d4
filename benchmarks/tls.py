"""Measures what TLS costs a send: sends a second and the broker's CPU time for each, with and without TLS, in one run.

    python benchmarks/tls.py [--messages 60000] [--senders 64] [--body 300] [--rounds 5]

One connection to a broker in mode Permissive keeps `--senders` sends under way. It writes each frame by itself, as
RocketMQ's Java client does, so with TLS each frame is a record of its own. Rounds with and without TLS alternate. The
last lines are the medians and their ratio. `--senders 1` shows the latency.
"""

from __future__ import annotations

import argparse
import os
import ssl
import statistics
import tempfile
import time
from pathlib import Path

from gantry_broker.remoting.tls import TlsOptions, client_context
from rig import gantry
from rig.wire import connect

from benchmarks.send_path import reads
from tests.support.certificates import Authority

ANSWER = b'{"code":0,'


def cpu_s(pid: int) -> float:
    """Returns the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def sends(address: str, context: ssl.SSLContext | None, frames: list[bytes], senders: int) -> float:
    """Sends all frames, and returns the seconds that it took."""
    sock = connect(address)
    if context is not None:
        sock = context.wrap_socket(sock, server_hostname="127.0.0.1")
    with sock:
        started = time.perf_counter()
        sent = answered = 0
        rest = b""
        while answered < len(frames):
            while sent < len(frames) and sent - answered < senders:
                sock.sendall(frames[sent])
                sent += 1
            data = rest + sock.recv(1 << 18)
            if data == rest:
                raise RuntimeError(f"the broker closed the connection after {answered} answers")
            answered += data.count(ANSWER)
            rest = data[-len(ANSWER) + 1 :]
        return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=60_000, help="of one round")
    parser.add_argument("--senders", type=int, default=64, help="sends under way at a time")
    parser.add_argument("--body", type=int, default=300, help="bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rsa", action="store_true", help="a certificate with an RSA key instead of an ECDSA one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tls-") as text:
        folder = Path(text)
        files = Authority().issue(folder / "certificates", "127.0.0.1", rsa_key=options.rsa)
        context = client_context(TlsOptions(ca_file=files.ca))
        tls = {"mode": "Permissive", "cert_file": str(files.cert), "key_file": str(files.key)}
        frames = reads(options.messages, 1, 64, options.body, None)
        with gantry.single(folder / "system", tls=tls) as system:
            (pid,) = system.broker_pids
            sends(system.broker_address, None, frames[:5_000], options.senders)
            found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
            print(f"{'':>10}{'sends/s':>10}{'broker us each':>16}")
            for _ in range(options.rounds):
                for with_tls in (False, True):
                    before = cpu_s(pid)
                    took = sends(system.broker_address, context if with_tls else None, frames, options.senders)
                    each = (cpu_s(pid) - before) / len(frames) * 1e6
                    found[with_tls].append((len(frames) / took, each))
                    print(
                        f"{'TLS' if with_tls else 'plaintext':>10}{len(frames) / took:>10.0f}{each:>16.1f}", flush=True
                    )
        plain, secured = ([statistics.median(column) for column in zip(*found[kind], strict=True)] for kind in found)
        for name, median in (("plaintext", plain), ("TLS", secured)):
            print(f"{name:>10}{median[0]:>10.0f}{median[1]:>16.1f}  median")
        print(f"{'TLS/plain':>10}{secured[0] / plain[0]:>10.2f}{secured[1] / plain[1]:>16.2f}")


if __name__ == "__main__":
    main()
