"""What a rollback has copied, in a ConfigMap."""

from __future__ import annotations

import base64
import gzip
from typing import Any

import pytest
from gantry_broker.protocol.bodies import TopicConfig
from gantry_operator.migration.copying import QueuesCopy
from gantry_operator.migration.cutover_steps import Refused
from gantry_operator.platforms.kubernetes.api.client import ApiError, KubeApi
from gantry_operator.platforms.kubernetes.requests import rollback_state
from gantry_operator.platforms.kubernetes.requests.rollback_state import KEY, ConfigMapState

from tests.kubernetes.fake_api import FakeApi

OWNER = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerCluster", "name": "x", "uid": "u1"}


def state(api: KubeApi, owner: dict[str, Any] = OWNER) -> ConfigMapState:
    return ConfigMapState(api, "mq", "x-rollback", owner)


async def test_the_next_operator_reads_what_the_last_one_wrote(fake: FakeApi) -> None:
    assert await state(fake.api).load() is None
    for text in ("first", "x" * 2_000_000):
        await state(fake.api).save(text)
        assert await state(fake.api).load() == text
    found = fake.get("ConfigMap", "x-rollback")
    assert found is not None
    assert found["metadata"]["ownerReferences"] == [OWNER], "it goes with the cluster"
    assert "labels" not in found["metadata"], "no pass over the cluster's objects removes it"
    assert len(found["binaryData"][KEY]) < 1 << 20


async def test_another_clusters_record_is_neither_read_nor_taken_for_none(fake: FakeApi) -> None:
    """A cluster that was deleted and made again under the same name copies nothing by the record of the first."""
    await state(fake.api).save("{}")
    with pytest.raises(Refused, match="x-rollback is not of this cluster: delete it"):
        await state(fake.api, OWNER | {"uid": "u2"}).load()


def packed(data: bytes) -> str:
    return base64.b64encode(data).decode()


WHOLE = gzip.compress(b"x" * 100)


@pytest.mark.parametrize(
    "content",
    [
        None,
        {},
        {KEY: "%%%"},
        {KEY: packed(b"no gzip")},
        {KEY: packed(WHOLE[:-9])},
        {KEY: packed(gzip.compress(b"\xff"))},
        {KEY: packed(gzip.compress(b"x" * 101))},
    ],
)
async def test_a_record_that_somebody_has_spoilt_is_refused(
    fake: FakeApi, content: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollback_state, "MOST", 100)
    fake.put(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "x-rollback", "namespace": "mq", "ownerReferences": [OWNER]},
            "binaryData": content,
        }
    )
    with pytest.raises(Refused, match="x-rollback is no record of a copy"):
        await state(fake.api).load()


async def test_what_was_not_written_is_written_again(fake: FakeApi) -> None:
    """A copy counts nothing as kept whose write failed."""

    class Copy(QueuesCopy):
        def __init__(self) -> None:
            super().__init__(None, None, (), state(fake.api))  # type: ignore[arg-type]

        async def config_of(self, topic: str) -> TopicConfig | None:
            raise AssertionError(topic)

    made = Copy()
    fake.down = True
    with pytest.raises(ApiError, match="it is down"):
        await made.save()
    fake.down = False
    await made._save_soon()
    assert await state(fake.api).load() == '{"topics": {}}'
    await state(fake.api).save("other")
    made._changed = True
    await made._save_soon()
    assert await state(fake.api).load() == "other", "the API server gets no write for each message"
