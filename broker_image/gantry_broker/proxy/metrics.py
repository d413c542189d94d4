"""The metrics of one proxy process."""

from __future__ import annotations

from typing import Final

from gantry_broker.exposition import Family, Kind
from gantry_broker.http.families import build_info
from gantry_broker.proxy.http2.endpoint import Endpoint
from gantry_broker.proxy.service import Service

MAX_KINDS: Final = 100
"""Kinds of clients that have series of their own: versions are what clients say."""


def families(service: Service, endpoint: Endpoint) -> list[Family]:
    """Return what `/metrics` shows."""
    receiving, counts = service.receiving, service.counts
    clients: dict[tuple[str, str, str], int] = {}
    for client in service.clients:
        place = client.kind.name, client.language, client.version
        if place not in clients and len(clients) >= MAX_KINDS:
            place = client.kind.name, "other", "other"
        clients[place] = clients.get(place, 0) + 1
    rows: list[tuple[str, Kind, str, list[tuple[dict[str, str], float]]]] = [
        ("gantry_proxy_connections", "gauge", "Connections of gRPC clients.", [({}, len(endpoint.connections))]),
        ("gantry_proxy_refused_total", "counter", "Connections that were refused or ended for what they did.",
         [({"reason": reason}, count) for reason, count in sorted(endpoint.refused.counts.items())]),
        ("gantry_proxy_cut_total", "counter", "Connections that were ended because of a limit of memory.",
         [({}, endpoint.shared.cut)]),
        ("gantry_proxy_clients", "gauge", "Clients whose settings are known.",
         [({"type": kind, "language": language, "version": version}, count)
          for (kind, language, version), count in sorted(clients.items())]),
        ("gantry_proxy_answers_total", "counter", "Answers by method and code.",
         [({"method": method, "code": code}, count) for (method, code), count in sorted(counts.answers.items())]),
        ("gantry_proxy_seconds_total", "counter", "Time until answers, with the wait for messages.",
         [({"method": method}, seconds) for method, seconds in sorted(counts.seconds.items())]),
        ("gantry_proxy_renewed_handles", "gauge", "Messages that push consumers work on.",
         [({}, len(receiving.renewals))]),
        ("gantry_proxy_renewals_total", "counter", "Renewals of invisible times.", [({}, receiving.renewals.made)]),
        ("gantry_proxy_failed_renewals_total", "counter", "Renewals that failed.",
         [({}, receiving.renewals.failures)]),
        ("gantry_proxy_returned_messages_total", "counter",
         "Messages that went back because their client had gone before it got them.", [({}, receiving.returned)]),
        ("gantry_proxy_transaction_checks_total", "counter",
         "Questions of brokers about transactions that went to a client.", [({}, service.sending.checks)]),
        ("gantry_access_refused_total", "counter", "Refused requests by reason.",
         [({"reason": reason}, count) for reason, count in sorted(service.authentication.refused.items())]),
    ]  # fmt: skip
    return [*(Family(*row) for row in rows), build_info("proxy")]
