"""The guarantees of local mode with real processes: kill, freeze, hand over, adopt."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from gantry_operator.cluster.timestamps import utc
from gantry_operator.platforms.local import control, topics
from gantry_operator.platforms.local.client_facts import client_facts
from gantry_operator.platforms.local.process import start_mark

from tests.local.cluster import GAP_S, SILENT_GAP_S, Cluster, Load, check_account, kill

pytestmark = pytest.mark.timeout(300)


def test_status_is_the_resource_as_kubernetes_would_show_it(cluster: Cluster) -> None:
    resource = json.loads(cluster.gantry("status", "-o", "json").stdout)
    assert (resource["apiVersion"], resource["kind"]) == ("gantry.dev/v1alpha1", "BrokerCluster")
    status = resource["status"]
    assert {c["type"]: c["status"] for c in status["conditions"]}["Available"] == "True"
    assert [m["name"] for m in status["members"]] == ["t-a-0", "t-a-1", "t-a-2"]
    for member in status["members"]:
        assert {"name", "group", "role", "brokerId", "epoch", "maxOffset", "lag", "inSync", "address", "pid"} <= set(
            member
        )
        assert start_mark(member["pid"]) is not None
    assert [m["brokerId"] for m in status["members"] if m["role"] == "Master"] == [0]
    assert status["nameServers"] == cluster.name_servers.split(";")
    assert any(e["reason"] == "GroupBootstrapped" for e in status["events"])
    text = cluster.gantry("status").stdout
    assert "t-a-1" in text
    assert "MEMBER" in text


def test_no_log_has_a_warning_of_a_library(cluster: Cluster) -> None:
    logs = sorted((cluster.folder.root / "log").glob("*.log"))
    assert {"t-a-0.log", "t-namesrv-0.log", "supervisor.log"} <= {path.name for path in logs}
    assert not [(path.name, line) for path in logs for line in path.read_text().splitlines() if "Warning:" in line]


def test_messages_go_in_and_come_out_by_the_command(cluster: Cluster) -> None:
    sent = json.loads(cluster.gantry("produce", "Orders", "--count", "50", "--size", "20", "-o", "json").stdout)
    assert (sent["acknowledged"], sent["statuses"]) == (50, {"SEND_OK": 50})
    cluster.gantry("produce", "Lines", "-", "--keys", "k{n}", "--tags", "blue", stdin="one\ntwo\n\nthree\n")
    out = cluster.gantry(
        "consume", "Lines", "--group", "readers", "--count", "3", "--timeout", "20", "-o", "json"
    ).stdout
    messages = [json.loads(line) for line in out.splitlines()]
    assert sorted(m["body"] for m in messages) == ["one", "three", "two"]
    assert sorted(m["keys"] for m in messages) == [["k0"], ["k1"], ["k2"]]
    assert {m["tags"] for m in messages} == {"blue"}
    again = cluster.gantry("consume", "Lines", "--group", "readers", "--count", "1", "--timeout", "1.5", check=False)
    assert again.returncode == 4
    assert "0 of 1 messages" in again.stderr


def test_unread_output_is_not_consumed(cluster: Cluster) -> None:
    """`gantry consume ... | head -n 1`: the rest is for the next one."""
    cluster.gantry("produce", "Piped", "--count", "300", "--size", "4000")
    consume = [sys.executable, "-m", "gantry_operator.cli", "consume", "Piped", "--group", "g", "--timeout", "20"]
    with subprocess.Popen(
        consume, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=cluster.environment, bufsize=0
    ) as cut_off:
        assert cut_off.stdout is not None
        assert cut_off.stderr is not None
        cut_off.stdout.read(4000)
        cut_off.stdout.close()
        assert cut_off.wait(30) != 0
        assert cut_off.stderr.read() == b""
    with open("/dev/full", "w") as full:
        refused = subprocess.run(
            consume, stdout=full, stderr=subprocess.PIPE, env=cluster.environment, text=True, check=False, timeout=60
        )
    assert (refused.returncode, refused.stderr) == (
        1,
        "error: received messages cannot be written to stdout: No space left on device\n",
    )
    rest = cluster.gantry("consume", "Piped", "--group", "g", "--timeout", "2")
    assert 300 - 65536 // 4000 - 2 <= len(rest.stdout.splitlines()) <= 300, "what a pipe holds has been written"


@pytest.mark.parametrize("form", [(), ("-o", "json")])
def test_a_stdout_that_is_not_utf_8_loses_no_message(cluster: Cluster, form: tuple[str, ...]) -> None:
    topic = f"Latin{len(form)}"
    cluster.gantry("produce", topic, "-", "--keys", "k\u6ce8", stdin="Gr\u00fc\u00dfe \x1b[31m\u202e\n\u6ce8\u6587\n")
    consume = ["consume", topic, "-g", "g", "--count", "2", "--timeout", "20", *form]
    done = subprocess.run(
        [sys.executable, "-m", "gantry_operator.cli", *consume],
        env=cluster.environment | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}, capture_output=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"2 messages\n"), done.stdout
    assert b"\x1b" not in done.stdout
    lines = done.stdout.decode("ascii").splitlines()
    if form:
        bodies = {json.loads(line)["body"] for line in lines}
        assert bodies == {"Gr\u00fc\u00dfe \x1b[31m\u202e", "\u6ce8\u6587"}, "nothing of it is lost"
    else:
        assert sorted(lines) == ["??", r"Gr??e \x1b[31m\u202e"]
    assert cluster.gantry("consume", topic, "-g", "g", "--timeout", "2").stdout == ""


def test_topics_are_made_and_listed(cluster: Cluster) -> None:
    cluster.gantry("topic", "create", "Made", "--queues", "3")
    rows = json.loads(cluster.gantry("topic", "list", "-o", "json").stdout)
    made = next(r for r in rows if r["topic"] == "Made")
    assert made == {"topic": "Made", "queues": 3, "messages": 0, "resource": "", "ready": "-"}
    assert not any(r["topic"].startswith(("%", "rmq_sys_", "TBW102", "SCHEDULE")) for r in rows)


FOR_MOST = (
    "cryptography", "gantry_broker.client.consumer", "gantry_broker.client.simple_consumer", "gantry_broker.config",
    "gantry_operator.certificates.x509", "gantry_operator.cluster.live", "gantry_operator.failover",
    "gantry_operator.plan.process_config", "httpx", "kubernetes", "numpy", "pyarrow", "uvloop",
)  # fmt: skip
"""What a command that asks brokers does without: each costs as much as a tenth of the command."""
NO_MODELS = (*FOR_MOST, "gantry_operator.api.consumer_group", "gantry_operator.api.spec", "gantry_operator.plan.plan")
"""The supervisor has the models of the manifest and of the resources, and says what a command needs of them."""
FOR_STATUS = (
    *FOR_MOST, "gantry_broker.client", "gantry_broker.remoting", "gantry_operator.api.spec",
    "gantry_operator.cluster.platform", "gantry_operator.platforms.local.status",
)  # fmt: skip
"""The supervisor has the modules and models of a status, and answers."""
FOR_TOP = (
    "cryptography", "gantry_broker.client", "gantry_broker.protocol.headers", "gantry_operator.access",
    "gantry_operator.cluster.platform", "gantry_operator.plan.process_config", "kubernetes", "numpy", "pyarrow",
    "uvloop",
)  # fmt: skip
"""Members are asked over HTTP."""


@pytest.fixture(scope="module")
def known(cluster: Cluster) -> None:
    """A topic and a consumer group."""
    cluster.gantry("topic", "create", "Known")
    cluster.gantry("group", "create", "known")


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("command", "unwanted"),
    [
        ("topic list", FOR_MOST), ("group list", NO_MODELS), ("dlq list", NO_MODELS), ("user list", FOR_MOST),
        ("group describe known", NO_MODELS), ("messages Known", NO_MODELS), ("volume list", FOR_MOST),
        ("self-test --cluster t", NO_MODELS), ("status", FOR_STATUS), ("top --once", FOR_TOP),
        ("--help", (*FOR_MOST, "pydantic", "gantry_broker.client")),
    ],
)  # fmt: skip
def test_a_command_that_reads_imports_what_it_uses(cluster: Cluster, command: str, unwanted: tuple[str, ...]) -> None:
    place = [] if command in ("--help", "self-test --cluster t") else ["--dir", str(cluster.folder.root)]
    arguments = [sys.executable, "-X", "importtime", "-m", "gantry_operator.cli", *command.split(), *place]
    done = subprocess.run(arguments, capture_output=True, text=True, env=cluster.environment, check=True)
    assert_imports(done.stderr, unwanted)


@pytest.mark.usefixtures("known")
async def test_the_supervisor_says_what_a_command_would_read_from_the_folder(cluster: Cluster) -> None:
    cluster.gantry("group", "create", "kept", "--managed")
    folder = cluster.folder
    assert await control.ask(folder, "clients", 5.0) == client_facts(folder)
    for kind, names in (("ConsumerGroup", ["kept"]), ("BrokerTopic", [])):
        said = (await control.ask(folder, "resources", 5.0, kind=kind))["resources"]
        assert [resource["metadata"]["name"] for resource in said] == names
        assert said == topics.described(folder, kind)  # type: ignore[arg-type]
    with pytest.raises(control.ControlError, match="Pod"):
        await control.ask(folder, "resources", 5.0, kind="Pod")
    cluster.gantry("group", "delete", "kept")


def test_a_completion_imports_what_it_uses(cluster: Cluster) -> None:
    done = complete(cluster, f"gantry topic describe --dir {cluster.folder.root} Ma", "-X", "importtime")
    assert_imports(done.stderr, (*FOR_MOST, "rich"))


def assert_imports(log: str, unwanted: tuple[str, ...]) -> None:
    """`log`: what `python -X importtime` printed."""
    imported = {line.rpartition("|")[2].strip() for line in log.splitlines() if line.startswith("import time")}
    assert "gantry_operator.cli.app" in imported
    assert imported.isdisjoint(unwanted), imported & set(unwanted)


def completed(cluster: Cluster, line: str) -> list[str]:
    """What bash offers for a command line."""
    return complete(cluster, line).stdout.split()


def complete(cluster: Cluster, line: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Ask as bash does. `options`: of Python."""
    words = line.split(" ")
    environment = cluster.environment | {
        "_GANTRY_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)
    }  # fmt: skip
    program = "import sys; sys.argv[0] = 'gantry'; from gantry_operator.cli import main; main()"
    command = [sys.executable, *options, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_a_shell_completes_names(cluster: Cluster) -> None:
    cluster.gantry("topic", "create", "Completed", "--dir", str(cluster.folder.root))
    cluster.gantry("group", "create", "completing", "--dir", str(cluster.folder.root))
    assert {"top", "topic"} <= set(completed(cluster, "gantry top"))
    assert "describe" in completed(cluster, "gantry topic d")
    assert completed(cluster, "gantry status --cluster ") == [cluster.name]
    where = f"--dir {cluster.folder.root}"
    assert completed(cluster, f"gantry consume {where} Compl") == ["Completed"]
    assert completed(cluster, f"gantry topic describe {where} Compl") == ["Completed"]
    assert completed(cluster, f"gantry group describe {where} compl") == ["completing"]
    assert completed(cluster, f"gantry topic describe {where} rmq_sys") == []
    assert not {cluster.name, f"{cluster.name}_REPLY_TOPIC", "a"} & set(completed(cluster, f"gantry consume {where} "))
    assert completed(cluster, "gantry topic describe --dir /nowhere Compl") == []


async def test_kill_9_of_the_master_loses_nothing_that_was_promised(cluster: Cluster) -> None:
    cluster.until("all members are in sync", cluster.whole)
    before = cluster.master()
    async with Load.on(cluster, "Kill", "k") as load:
        await load.more(200)
        kill(before["pid"], signal.SIGKILL)
        await load.more(300)
    after = cluster.master()
    assert after["name"] != before["name"]
    assert after["epoch"] > before["epoch"]
    await check_account(cluster, load)
    assert load.gap_s() < GAP_S, f"senders waited {load.gap_s():.2f} s"
    last = cluster.resource()["status"]["lastFailover"]
    assert (last["from"], last["to"], last["planned"]) == (before["name"], after["name"], False)
    # The killed member restarts by itself, as a slave, and in sync.
    cluster.until("all members are in sync", cluster.whole)
    assert cluster.members()[before["name"]]["role"] == "Slave"


async def test_a_frozen_master_is_replaced_and_its_port_is_free(cluster: Cluster) -> None:
    cluster.until("all members are in sync", cluster.whole)
    before = cluster.master()
    async with Load.on(cluster, "Freeze", "f") as load:
        await load.more(100)
        kill(before["pid"], signal.SIGSTOP)
        await load.more(200)
    assert cluster.master()["name"] != before["name"]
    await check_account(cluster, load)
    assert load.gap_s() < SILENT_GAP_S, f"senders waited {load.gap_s():.2f} s"
    cluster.until("all members are in sync", cluster.whole)
    assert cluster.members()[before["name"]]["pid"] != before["pid"]


async def test_a_frozen_slave_delays_writes_only_briefly(cluster: Cluster) -> None:
    cluster.until("all members are in sync", cluster.whole)
    slave = next(m for m in cluster.members().values() if m["role"] == "Slave")
    async with Load.on(cluster, "FreezeSlave", "s") as load:
        kill(slave["pid"], signal.SIGSTOP)
        try:
            await asyncio.to_thread(
                cluster.until, "it left the set", lambda: cluster.members()[slave["name"]].get("inSync") is False
            )
            await load.more(100)
        finally:
            kill(slave["pid"], signal.SIGCONT)
    await check_account(cluster, load)
    cluster.until("it is in sync again", cluster.whole)
    assert cluster.members()[slave["name"]]["pid"] == slave["pid"], "a slave that was only frozen is not replaced"


def test_a_condition_has_the_time_at_which_it_changed(cluster: Cluster) -> None:
    """Also while nobody looks: what is in the file is from the supervisor."""
    cluster.until("all members are in sync", cluster.whole)
    slave = next(m for m in cluster.members().values() if m["role"] == "Slave")

    def degraded() -> dict[str, str]:
        kept = json.loads(cluster.folder.conditions.read_text())["conditions"]
        return next(c for c in kept if c["type"] == "Degraded")

    before = utc()
    kill(slave["pid"], signal.SIGSTOP)
    try:
        cluster.until("it is noticed", lambda: degraded()["status"] == "True")
        seen = utc()
    finally:
        kill(slave["pid"], signal.SIGCONT)
    began = degraded()["lastTransitionTime"]
    assert before <= began <= seen
    cluster.until("its end is noticed", lambda: degraded()["status"] == "False")
    ended = degraded()["lastTransitionTime"]
    cluster.until("another second has begun", lambda: utc() > ended)
    shown = {c["type"]: c for c in cluster.resource()["status"]["conditions"]}["Degraded"]
    assert (shown["status"], shown["lastTransitionTime"]) == ("False", ended)


async def test_a_switchover_shows_no_error_to_senders(cluster: Cluster) -> None:
    cluster.until("all members are in sync", cluster.whole)
    before = cluster.master()
    target = next(m["name"] for m in cluster.members().values() if m["role"] == "Slave")
    async with Load.on(cluster, "Switch", "w") as load:
        await load.more(100)
        done = await asyncio.to_thread(cluster.gantry, "switchover", "a", "--to", target)
        await load.more(200)
    assert target in done.stdout
    after = cluster.master()
    assert (after["name"], after["epoch"]) == (target, before["epoch"] + 1), "one switchover, one epoch"
    assert load.errors == []
    assert not load.other
    await check_account(cluster, load)
    last = cluster.resource()["status"]["lastFailover"]
    assert (last["from"], last["to"], last["planned"]) == (before["name"], target, True)


async def test_a_switchover_without_a_target_is_one_change_only(cluster: Cluster) -> None:
    cluster.until("all members are in sync", cluster.whole)
    before = cluster.master()
    async with Load.on(cluster, "SwitchAny", "y") as load:
        await asyncio.to_thread(cluster.gantry, "switchover", "a")
        await load.more(300)
        after = await asyncio.to_thread(cluster.master)
    assert after["name"] != before["name"]
    assert after["epoch"] == before["epoch"] + 1
    assert load.errors == []
    await check_account(cluster, load)


def test_switchover_says_why_not(cluster: Cluster) -> None:
    unknown = cluster.gantry("switchover", "b", check=False)
    assert unknown.returncode == 1
    assert "has no group 'b', but a" in unknown.stderr
    stranger = cluster.gantry("switchover", "a", "--to", "t-a-9", check=False)
    assert "has no member 't-a-9'" in stranger.stderr
    leads = cluster.master()["name"]
    assert "is master already" in cluster.gantry("switchover", "a", "--to", leads).stdout


async def test_brokers_go_on_without_their_supervisor_and_the_next_one_takes_them_over(cluster: Cluster) -> None:
    cluster.until("all members are in sync", cluster.whole)
    before = {name: m["pid"] for name, m in cluster.members().items()}
    async with Load.on(cluster, "Orphans", "o") as load:
        kill(cluster.supervisor_pid(), signal.SIGKILL)
        await load.more(200)
        resource = cluster.resource()
        assert resource["status"]["supervised"] is False
        assert {m["name"]: m["pid"] for m in resource["status"]["members"]} == before
        # A planned change works without it, too.
        await asyncio.to_thread(cluster.gantry, "switchover", "a")
        await asyncio.to_thread(cluster.up)
        assert {name: m["pid"] for name, m in cluster.members().items()} == before
        master = cluster.master()
        kill(master["pid"], signal.SIGKILL)
        await load.more(200)
    assert cluster.master()["name"] != master["name"]
    await check_account(cluster, load)


def test_a_frozen_supervisor_is_named_and_what_only_it_knows_is_unknown(cluster: Cluster) -> None:
    cluster.until("all members are in sync", cluster.whole)
    where = ("--dir", str(cluster.folder.root))
    pid = cluster.supervisor_pid()
    slave = next(m for m in cluster.members().values() if m["role"] == "Slave")
    kill(pid, signal.SIGSTOP)
    try:
        kill(slave["pid"], signal.SIGSTOP)
        status = json.loads(cluster.gantry("status", "-o", "json", *where).stdout)["status"]
        said = cluster.gantry("status", *where).stdout
        top = cluster.gantry("top", "--once", *where, check=False).stdout
    finally:
        kill(slave["pid"], signal.SIGCONT)
        kill(pid, signal.SIGCONT)
    assert status["supervised"] is False
    assert (status["supervisor"]["pid"], status["supervisor"]["stopped"]) == (pid, True)
    assert f"`gantry up` (process {pid}) did not answer within 1 s: a signal has stopped it" in said
    assert f"kill -CONT {pid}" in said[said.index("NEXT") :]
    assert f"kill -CONT {pid}" in top
    conditions = {c["type"]: c["status"] for c in status["conditions"]}
    assert (conditions["Progressing"], conditions["Degraded"]) == ("Unknown", "True")
    row = next(m for m in status["members"] if m["name"] == slave["name"])
    assert (row["role"], row["reason"]) == ("Unknown", "it does not answer")
    assert "inSync" not in row, "the record has it in the set, and nobody can say whether it is there still"
    assert all(m["inSync"] for m in status["members"] if m["name"] != slave["name"])
    cluster.until("it answers again", lambda: cluster.resource()["status"]["supervised"])
    cluster.until("all members are in sync", cluster.whole)


def test_a_name_server_that_dies_is_started_again_with_all_routes(cluster: Cluster) -> None:
    server = cluster.resource()["status"]["nameServerMembers"][0]
    kill(server["pid"], signal.SIGKILL)

    def back() -> bool:
        now = cluster.resource()["status"]["nameServerMembers"][0]
        return bool(now["ready"] and now["pid"] and now["pid"] != server["pid"])

    cluster.until("it answers again", back)
    cluster.gantry("produce", "AfterRestart", "--count", "5", "--size", "10")


def test_a_second_up_gives_the_running_one_its_manifest(cluster: Cluster) -> None:
    cluster.until("all members are in sync", cluster.whole)
    before = {name: m["pid"] for name, m in cluster.members().items()}
    cluster.write(broker={"fileReservedTime": 5})
    try:
        said = cluster.gantry("up", str(cluster.file), "--dir", str(cluster.folder.root), "--timeout", "80").stdout
        assert "supervises t already" in said
        assert cluster.whole(), "the change is done, the member that was replaced last has joined"
        cluster.until("all members were replaced", lambda: not set(before.values()) & {
            m.get("pid") for m in cluster.members().values()} and cluster.whole())  # fmt: skip
        assert json.loads(cluster.folder.config("t-a-0").read_text())["settings"]["fileReservedTime"] == 5
    finally:
        cluster.write()
    other = cluster.file.with_name("other.yaml")
    other.write_text(cluster.file.read_text().replace('"brokerGroups"', '"mode": "Raft", "brokerGroups"'))
    refused = cluster.gantry("up", str(other), "--dir", str(cluster.folder.root), check=False)
    assert refused.returncode == 2
    assert "spec.mode is Raft, was MasterSlave" in refused.stderr


def test_the_network_between_members_has_a_verdict(cluster: Cluster) -> None:
    cluster.until("all members are in sync", cluster.whole)
    network = ("self-test", "--cluster", cluster.name)
    said = json.loads(cluster.gantry(*network, "--limit", "1000", "-o", "json").stdout)
    master = cluster.master()["name"]
    others = sorted(set(cluster.members()) - {master})
    by_pair = {(link["one"], link["other"]): link for link in said["links"]}
    for other in others:
        link = by_pair[other, master]
        assert (link["level"], 0 < link["rtt_ms"] < 1000) == ("good", True), said
    assert by_pair[others[0], others[1]]["level"] == "unknown", "they have no connection"
    servers = [link for pair, link in by_pair.items() if pair[1].startswith("127.0.0.1:")]
    assert [link["level"] for link in servers] == ["good"] * 6, said
    assert said["verdict"] == "all that is known is reached within the limit"

    slave = cluster.members()[others[0]]
    os.kill(slave["pid"], signal.SIGSTOP)
    try:
        cluster.until("the leader has not heard of it", lambda: cluster.gantry(*network, check=False).returncode == 1)
        failed = cluster.gantry(*network, check=False)
    finally:
        os.kill(slave["pid"], signal.SIGCONT)
    assert f"not everything is reached: {others[0]} to {master}" in failed.stderr
    assert "has not asked for records for" in failed.stdout
    assert f"{others[0]} does not say: " in failed.stdout
    cluster.until("all members are in sync", cluster.whole)


def test_the_supervisor_is_light(cluster: Cluster) -> None:
    pages = int(Path(f"/proc/{cluster.supervisor_pid()}/statm").read_text().split()[1])
    assert pages * os.sysconf("SC_PAGE_SIZE") < 66 * 2**20
