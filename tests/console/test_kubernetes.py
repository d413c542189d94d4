"""The console in Kubernetes: who a token is, what they may do, which clusters there are, and the chart."""

from __future__ import annotations

import base64
import gzip
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from fastapi import FastAPI
from gantry_broker import report_page
from gantry_operator.actions.errors import ActionError
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.console.access import Sessions
from gantry_operator.console.app import make_app
from gantry_operator.console.collector import Collector
from gantry_operator.console.kubernetes import (
    REVIEW_S,
    SIGN_INS_PER_SECOND,
    Clusters,
    ConfigMapHistory,
    KubernetesAccess,
    KubernetesSource,
    PauseAnnotation,
)
from gantry_operator.console.pages.activity import REPORT_POLICY
from gantry_operator.console.snapshot import ClusterKey, Point
from gantry_operator.console.sources import MemberAudit, MemberUrl, SourceError
from gantry_operator.platforms.kubernetes.analytics.manifests import page_secret
from gantry_operator.platforms.kubernetes.api.client import KINDS, ApiUnavailable
from gantry_spark.page_secret import patch_of
from httpx import ASGITransport, AsyncClient

from tests.console.fake import FakeSource, InKubernetes
from tests.console.test_server import csrf_of
from tests.kubernetes.fake_api import FakeApi
from tests.support.present import present

ROOT = Path(__file__).parents[2]
KEY = ClusterKey("local", "fake")
HERE = "/c/local/fake"
RIGHTS = {"reader-token": ("ann", {"get"}), "writer-token": ("bob", {"get", "update"}), "nobody-token": ("eve", set())}


class Reviews:
    """Answers reviews as the API server does."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.revoked: set[str] = set()
        self.down = False

    async def create(self, obj: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append(obj["kind"])
        if self.down:
            raise ApiUnavailable("no answer")
        spec = obj["spec"]
        if obj["kind"] == "TokenReview":
            known = RIGHTS.get(spec["token"])
            if known is None or spec["token"] in self.revoked:
                return {"status": {"authenticated": False, "user": {}}}
            return {"status": {"authenticated": True, "user": {"username": known[0], "groups": ["people"]}}}
        assert obj["kind"] == "SubjectAccessReview"
        wanted = spec["resourceAttributes"]
        assert (wanted["group"], wanted["resource"]) == ("gantry.dev", "brokerclusters")
        assert (wanted["namespace"], wanted["name"], spec["groups"]) == ("local", "fake", ["people"])
        verbs = next(verbs for user, verbs in RIGHTS.values() if user == spec["user"])
        return {"status": {"allowed": wanted["verb"] in verbs}}


class Console:
    """The application with these reviews. `seconds`: its clock."""

    def __init__(self, user_header: str = "", source: FakeSource | None = None) -> None:
        self.reviews = Reviews()
        self.seconds = 0.0
        sessions = Sessions()
        self.access = KubernetesAccess(
            self.reviews,
            sessions,
            ["console.example"],
            user_header,
            "X-Groups",
            lambda: self.seconds,  # type: ignore[arg-type]
        )
        collector = Collector(source or FakeSource())  # type: ignore[arg-type]
        self.app: FastAPI = make_app(lambda: {KEY: collector}, self.access, sessions)

    def person(self) -> AsyncClient:
        return AsyncClient(transport=ASGITransport(self.app), base_url="https://console.example", follow_redirects=True)


@pytest.mark.parametrize(
    ("token", "read", "write"), [("reader-token", 200, 403), ("writer-token", 200, 400), ("nobody-token", 404, 404)]
)
async def test_a_person_may_do_what_their_own_rights_say(token: str, read: int, write: int) -> None:
    console = Console()
    async with console.person() as client:
        signed = await client.post("/login", data={"bearer": token})
        assert signed.status_code == 200
        page = await client.get(f"{HERE}/actions")
        assert page.status_code == read
        csrf = csrf_of(page.text) if read == 200 else ""
        # The form is refused for its number, after the right was checked.
        answer = await client.post(f"{HERE}/actions/topic", data={"csrf": csrf, "topic": "T", "queues": "0"})
        assert answer.status_code == write


async def test_a_token_that_is_not_valid_opens_nothing() -> None:
    console = Console()
    async with console.person() as client:
        for token in ("", "wrong", "x" * 20_000):
            assert (await client.post("/login", data={"bearer": token})).status_code == 401
        strange = await client.post(
            "/login", data={"bearer": "writer-token"}, headers={"Origin": "https://evil.example"}
        )
        assert strange.status_code == 403
        assert (await client.get(HERE)).status_code == 401
        assert (await client.get(HERE, headers={"Host": "evil.example"})).status_code == 421
        assert (await client.get("/livez", headers={"Host": "10.0.0.7:8080"})).status_code == 200


async def test_the_cookie_is_for_this_host_and_https_only() -> None:
    console = Console()
    async with AsyncClient(transport=ASGITransport(console.app), base_url="https://console.example") as client:
        signed = await client.post("/login", data={"bearer": "reader-token"})
    cookie = signed.headers["set-cookie"]
    assert cookie.startswith("__Host-gantry-console=")
    assert {"HttpOnly", "Path=/", "SameSite=strict", "Secure"} <= set(cookie.split("; "))


async def test_answers_are_kept_for_a_moment_and_then_asked_again() -> None:
    console = Console()
    async with console.person() as client:
        await client.post("/login", data={"bearer": "reader-token"})
        for _ in range(5):
            assert (await client.get(f"{HERE}/members")).status_code == 200
        assert console.reviews.asked.count("TokenReview") == 1
        assert console.reviews.asked.count("SubjectAccessReview") == 2
        console.reviews.revoked.add("reader-token")
        console.seconds += REVIEW_S + 1
        assert (await client.get(f"{HERE}/members")).status_code == 401


async def test_guessed_tokens_cost_the_api_server_a_few_reviews_a_second() -> None:
    console = Console()
    async with console.person() as client:
        assert (await client.post("/login", data={"bearer": "reader-token"})).status_code == 200
        answers = [await client.post("/login", data={"bearer": f"guess-{n}"}) for n in range(100)]
        assert {a.status_code for a in answers} == {401, 429}
        assert answers[-1].headers["retry-after"] == "1"
        assert console.reviews.asked.count("TokenReview") == SIGN_INS_PER_SECOND
        assert (await client.get(f"{HERE}/members")).status_code == 200, "a session goes on"
        signed = await client.post("/login", data={"bearer": "reader-token"})
        assert signed.status_code == 200, "a token that was checked lately needs no review"
        assert (await client.post("/login", data={"bearer": "writer-token"})).status_code == 429
        console.seconds += 1
        assert (await client.post("/login", data={"bearer": "writer-token"})).status_code == 200


async def test_without_an_answer_of_the_api_server_nothing_is_allowed() -> None:
    console = Console()
    async with console.person() as client:
        await client.post("/login", data={"bearer": "writer-token"})
        console.reviews.down = True
        console.seconds += REVIEW_S + 1
        assert (await client.get(f"{HERE}/members")).status_code == 401


async def test_a_header_counts_only_where_it_is_switched_on() -> None:
    headers = {"X-User": "bob", "X-Groups": "people"}
    async with Console().person() as client:
        assert (await client.get(HERE, headers=headers)).status_code == 401
    proxied = Console("X-User")
    async with proxied.person() as client:
        assert (await client.get(HERE)).status_code == 401
        page = await client.get(f"{HERE}/actions", headers=headers)
        assert page.status_code == 200
        assert "bob" in page.text
        assert "may read only" not in page.text
        answer = await client.post(f"{HERE}/actions/topic", data={"topic": "T", "queues": "8"}, headers=headers)
        assert answer.status_code == 403
        assert "TokenReview" not in proxied.reviews.asked
        assert (await client.post("/login", data={"bearer": "writer-token"}, headers=headers)).status_code == 401


async def test_clusters_come_and_go_with_their_resources() -> None:
    async with FakeApi() as fake:
        obj = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerCluster",
               "metadata": {"name": "demo", "namespace": "mq"}, "spec": {"brokerGroups": [{"name": "a"}]}}  # fmt: skip
        fake.put(obj)
        clusters = Clusters(fake.api, ())
        await clusters.look()
        assert list(clusters.collectors) == [ClusterKey("mq", "demo")]
        fake.remove("BrokerCluster", "mq", "demo")
        await clusters.look()
        assert not clusters.collectors


async def test_the_chart_outlives_the_console_in_a_config_map() -> None:
    """A failing API server is no empty history, and a cluster that is deleted leaves no entry."""
    place, now = ClusterKey("system", "gantry-console-history"), 10_000.0
    async with FakeApi() as fake:
        fake.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": place.name, "namespace": place.space}})
        history, other = (ConfigMapHistory(fake.api, place, f"mq.{name}") for name in ("demo", "other"))
        assert await history.read(now) == ()
        points = [Point(now - back, 5.0, 1.0) for back in (300.0, 270.0, 120.0, 60.0)]
        await history.keep(points)
        await other.keep(points[:1])
        assert await history.read(now) == (points[0], points[2], points[3]), "a point for each minute"
        fake.objects["ConfigMap", place.space, place.name]["data"]["mq.demo"] = "[["
        assert await history.read(now) == ()
        await history.forget()
        assert list(fake.objects["ConfigMap", place.space, place.name]["data"]) == ["mq.other"]
        fake.down = True
        assert await history.read(now) is None
        await history.keep(points)


async def test_members_are_asked_by_their_names_in_the_cluster() -> None:
    async with FakeApi() as fake:
        source = KubernetesSource(fake.api, ClusterKey("mq", "demo"))
        source._resource = {
            "apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerCluster",
            "metadata": {"name": "demo", "namespace": "mq"},
            "spec": {"brokerGroups": [{"name": "a", "members": 2}]},
        }  # fmt: skip
        found = await source.members()
        assert [m.name for m in found] == ["demo-a-0", "demo-a-1"]
        assert re.fullmatch(r"https?://demo-a-0\.[a-z0-9.-]*mq\.svc[a-z.]*:10921", found[0].url), found[0].url
        await source.close()


async def test_lines_of_the_audit_come_from_every_member() -> None:
    """Bad lines and bad answers are left out, and a member that stops to answer keeps what it had."""
    answers: dict[str, httpx.Response | None] = {
        "m0": httpx.Response(200, json={"lines": [{"time_ms": 5, "user": "ann"}, {"time_ms": "x"}, 3, {}, None]}),
        "m1": httpx.Response(200, json={"lines": [{"time_ms": 9, "user": "bob"}, {"time_ms": 10**300}]}),
        "m2": httpx.Response(200, json=["lines"]),
        "m3": httpx.Response(404),
        "m4": None,
    }

    async def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/audit"
        found = answers[request.url.host]
        if found is None:
            raise httpx.ConnectError("refused", request=request)
        return found

    async def members() -> list[MemberUrl]:
        return [MemberUrl(name, "a", f"http://{name}") for name in answers]

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        audit = MemberAudit(client)
        expected = [{"time_ms": 9, "user": "bob", "member": "m1"}, {"time_ms": 5, "user": "ann", "member": "m0"}]
        assert await audit.lines(members) == expected
        answers["m1"] = None
        audit._read_at = -math.inf
        await audit.lines(members)
        assert audit._reading is not None
        await audit._reading
        assert await audit.lines(members) == expected
        await audit.close()


async def test_without_an_answer_of_a_member_there_is_no_line_yet() -> None:
    async def members() -> list[MemberUrl]:
        raise SourceError("no answer of the API server")

    async with httpx.AsyncClient() as client:
        assert await MemberAudit(client).lines(members) is None


async def test_the_page_of_the_report_is_that_of_the_secret_which_the_driver_writes() -> None:
    """Read again after a while; bytes that are no page are none."""
    page = b"<!doctype html>" + bytes(2_000_000)
    cluster = BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a"}], analytics={})
    async with FakeApi() as fake:
        source = KubernetesSource(fake.api, ClusterKey("mq", "demo"))
        for data, found in (
            (None, None),
            ({}, None),
            (patch_of(report_page.pack(page))["data"], page),
            ({report_page.KEY: base64.b64encode(b"no page").decode()}, None),
        ):
            if data is not None:
                fake.put(page_secret(cluster) | {"data": data})
            source._packed_until = 0.0
            assert await source.report() == found
        source._packed_until = math.inf
        fake.put(page_secret(cluster) | {"data": {}})
        assert await source.has_report(), "not asked for each page"
        await source.close()


def test_a_page_has_limits_in_both_forms() -> None:
    assert report_page.pack(bytes(report_page.MAX_PAGE + 1)) is None
    assert report_page.pack(os.urandom(report_page.MAX_PACKED)) is None
    assert report_page.unpack(gzip.compress(bytes(report_page.MAX_PAGE + 1))) is None
    assert report_page.unpack(present(report_page.pack(b"page" * 1000))[:-9]) is None


async def test_the_report_is_for_those_who_may_see_the_cluster() -> None:
    console = Console(source=InKubernetes())
    for token, status in (("", 401), ("reader-token", 200), ("nobody-token", 404)):
        async with console.person() as client:
            await client.post("/login", data={"bearer": token})
            page = await client.get(f"{HERE}/report")
            assert page.status_code == status
            assert ("a report" in page.text) == (status == 200)
            if status == 200:
                policy = page.headers["Content-Security-Policy"]
                assert policy == REPORT_POLICY
                assert "sandbox allow-scripts;" in policy
                assert "allow-same-origin" not in policy


async def test_a_pause_is_an_annotation() -> None:
    async with FakeApi() as fake:
        fake.put({"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerCluster",
                  "metadata": {"name": "demo", "namespace": "mq"}, "spec": {}})  # fmt: skip
        pausing = PauseAnnotation(fake.api, ClusterKey("mq", "demo"))
        for wanted, end in ((True, "gantry.dev/paused=true"), (False, "gantry.dev/paused-")):
            await pausing.pause(wanted)
            found = fake.objects["BrokerCluster", "mq", "demo"]
            assert found["metadata"].get("annotations", {}).get("gantry.dev/paused") == ("true" if wanted else None)
            assert pausing.command(wanted) == f"kubectl annotate bc demo -n mq --overwrite {end}"
        fake.remove("BrokerCluster", "mq", "demo")
        with pytest.raises(ActionError):
            await pausing.pause(True)


def test_the_chart_grants_the_verbs_that_the_console_uses() -> None:
    text = (ROOT / "helm/gantry/templates/console.yaml").read_text()
    found = present(re.search(r'\{\{- define "gantry.console.rules" -}}\n(.*?)\n\{\{- end -}}', text, re.DOTALL))
    rules = {resource: set(rule["verbs"]) for rule in yaml.safe_load(found[1]) for resource in rule["resources"]}
    assert rules == {
        "brokerclusters": {"get", "list", "patch"}, "brokerusers": {"get", "list", "create", "patch", "delete"},
        "brokertopics": {"get", "list", "create", "patch", "delete"},
        "consumergroups": {"get", "list", "create", "patch", "delete"},
        "secrets": {"get"},
        "events": {"list"},
    }  # fmt: skip
    reviews = re.findall(r"resources: \[(\w+reviews)]\n    verbs: \[create]", text)
    assert reviews == [KINDS["TokenReview"].plural, KINDS["SubjectAccessReview"].plural]
