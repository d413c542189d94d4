"""Measures what TLS or signatures cost a send: sends a second and the broker's CPU time for each, in one run.

    python benchmarks/secured.py                 # with TLS beside plaintext
    python benchmarks/secured.py --signed        # signed beside unsigned, authentication on and off
    python benchmarks/secured.py [--messages 60000] [--senders 64] [--body 300] [--rounds 5]

One connection to a broker keeps `--senders` sends under way. It writes each frame by itself, as RocketMQ's Java client
does, so with TLS each frame is a record of its own. Rounds with and without protection alternate. The last lines are
the medians of the sends, the minima of the CPU time, and their ratios: what else the machine does adds to the CPU time
of a send and never takes from it. `pairs` has the medians of the ratios of two rounds one after the other; with many
short rounds (`--messages 10000 --rounds 80`) they differ the least from run to run. `--senders 1` shows the latency.
"""

from __future__ import annotations

import argparse
import ssl
import statistics
import tempfile
import time
from pathlib import Path

import httpx
from gantry_broker.client.credentials import Credentials
from gantry_broker.remoting.tls import TlsOptions, client_context
from rig import gantry
from rig.wire import connect

from benchmarks.send_path import TABLE, reads
from tests.support.certificates import Authority

ANSWER = b'{"code":0,'


def cpu_s(pid: int) -> float:
    """Returns the CPU seconds that a process has used."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


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


def set_mode(http: str, version: int, mode: str) -> None:
    """Gives the broker an access table of this version."""
    table = {**TABLE, "version": version, "mode": mode}
    answer = httpx.put(f"http://{http}/v1/access", json=table, timeout=10).raise_for_status().json()
    if answer != {"version": version}:
        raise RuntimeError(f"the broker has access table {answer}, version {version} is expected")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=60_000, help="of one round")
    parser.add_argument("--senders", type=int, default=64, help="sends under way at a time")
    parser.add_argument("--body", type=int, default=300, help="bytes")
    parser.add_argument("--rounds", type=int, default=5)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--signed", action="store_true", help="measure signatures instead of TLS")
    kind.add_argument("--rsa", action="store_true", help="a certificate with an RSA key instead of an ECDSA one")
    options = parser.parse_args()
    names = ("unsigned", "signed") if options.signed else ("plaintext", "TLS")
    with tempfile.TemporaryDirectory(prefix="secured-") as text:
        folder = Path(text)
        tls = context = None
        frames = protected = reads(options.messages, 1, 64, options.body)
        if options.signed:
            protected = reads(options.messages, 1, 64, options.body, Credentials("orders", "orders-secret"))
        else:
            files = Authority().issue(folder / "certificates", "127.0.0.1", rsa_key=options.rsa)
            context = client_context(TlsOptions(ca_file=files.ca))
            tls = {"mode": "Permissive", "cert_file": str(files.cert), "key_file": str(files.key)}
        with gantry.single(folder / "system", tls=tls) as system:
            (pid,) = system.broker_pids
            sends(system.broker_address, None, frames[:5_000], options.senders)
            found: list[list[tuple[float, float]]] = [[], []]
            print(f"{'':>15}{'sends/s':>10}{'broker us each':>16}")
            for number in range(2 * options.rounds):
                on = number % 2
                if options.signed:
                    set_mode(system.http, number + 1, "Enabled" if on else "Disabled")
                before = cpu_s(pid)
                took = sends(
                    system.broker_address, context if on else None, protected if on else frames, options.senders
                )
                each = (cpu_s(pid) - before) / len(frames) * 1e6
                found[on].append((len(frames) / took, each))
                print(f"{names[on]:>15}{len(frames) / took:>10.0f}{each:>16.1f}", flush=True)
        plain, secured = (
            (statistics.median(rate), min(cpu)) for rate, cpu in (zip(*rounds, strict=True) for rounds in found)
        )
        for name, (rate, cpu) in zip(names, (plain, secured), strict=True):
            print(f"{name:>15}{rate:>10.0f}{cpu:>16.1f}  median, minimum")
        print(f"{'ratio':>15}{secured[0] / plain[0]:>10.2f}{secured[1] / plain[1]:>16.2f}")
        both = [(on[0] / off[0], on[1] / off[1]) for off, on in zip(*found, strict=True)]
        rate, cpu = (statistics.median(column) for column in zip(*both, strict=True))
        print(f"{'pairs':>15}{rate:>10.2f}{cpu:>16.3f}")


if __name__ == "__main__":
    main()
