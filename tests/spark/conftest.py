"""One Spark session for all tests of this folder, and the path of the helper modules beside them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from gantry_broker.testing import LocalBroker, broker

from tests.support.selection import leave_out

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


AT_NIGHT = frozenset(
    {
        "test_lost_executors",
        "test_other_reader",
        "test_promised",
        "test_remote::test_a_group_without_any_answer_fails_the_run",
        "test_report::test_a_truncated_filler_is_counted_again",
        "test_report::test_a_truncation_before_the_next_read_is_counted_again",
        "test_report::test_a_truncation_during_the_count_is_counted_again",
        "test_report::test_a_truncation_between_two_tasks_is_counted_again",
        "test_report::test_deleted_rows_are_counted_again",
        "test_report::test_impossible_queue_offsets",
        "test_report::test_impossible_store_times",
        "test_report::test_queues_beyond_32_bits",
        "test_report::test_queues_beyond_the_first_64",
        "test_report::test_repaired_damage_is_counted_again",
        "test_report::test_state_of_many_runs_is_merged",
        "test_report::test_the_disk_fills_with_the_whole_log",
        "test_sink_streams",
        "test_stream_groups",
        "test_table_groups",
    }
)
"""Modules, and rare cases of others, that run only with SPARK_TESTS=full."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of `AT_NIGHT`."""
    if os.environ.get("SPARK_TESTS") != "full":
        leave_out(config, items, lambda item: bool(AT_NIGHT & {item.path.stem, f"{item.path.stem}::{item.name}"}))


@pytest.fixture(scope="module")
def mq() -> Iterator[LocalBroker]:
    """A broker of one process."""
    with broker() as running:
        yield running


@pytest.fixture
def warehouse(tmp_path: Path) -> dict[str, str]:
    """A catalog and tables in a folder."""
    return {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/tables"}


@pytest.fixture(scope="session")
def java() -> str:
    """The path of Java 17 or 21, which `make test` installs if possible."""
    from gantry_spark.session import NoJava, check_java

    try:
        return check_java()
    except NoJava as missing:
        pytest.skip(f"there is no Java for Spark here: {missing}")


@pytest.fixture(scope="session")
def spark(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session."""
    from gantry_spark.session import SHORT_RUN_OPTIONS, session

    made = session(
        "tests",
        "local[2]",
        {
            "spark.sql.shuffle.partitions": "2",
            # The logs of the tests are small, so the JVM's start takes most of the time.
            "spark.driver.extraJavaOptions": f"{SHORT_RUN_OPTIONS} -XX:+UseSerialGC",
            "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    yield made
    made.stop()
