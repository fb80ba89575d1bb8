"""The command line as a real process, against a real node."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests import warm_python

from dovetail.cli.outcome import ExitCode

COMMAND_S_MAX = 60.0


class Node(Protocol):
    """What the `node` fixture gives."""

    bootstrap: str
    http_url: str
    data_dir: Path


Done = subprocess.CompletedProcess[str]


class CommandLine:
    """Runs `dovetail` with the node's address in its environment."""

    def __init__(self, node: Node, folder: Path) -> None:
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("DOVETAIL_")},
            "DOVETAIL_CLIENT_BOOTSTRAP": node.bootstrap,
        }
        self._folder = folder

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return warm_python.Popen(
            [sys.executable, "-c", "from dovetail.cli import main; main()", *arguments],
            env=self._environment,
            cwd=self._folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, given: str = "") -> Done:
        process = self.start(*arguments)
        try:
            stdout, stderr = process.communicate(given, timeout=COMMAND_S_MAX)
        finally:
            process.kill()
        assert "Traceback" not in stderr, stderr
        return Done(process.args, process.returncode, stdout, stderr)

    def ok(self, *arguments: str, given: str = "") -> str:
        done = self.run(*arguments, given=given)
        assert done.returncode == ExitCode.OK, done.stderr
        return done.stdout

    def json(self, *arguments: str, given: str = "") -> Any:
        return json.loads(self.ok(*arguments, "--json", given=given))


@pytest.fixture
def dovetail(node: Node, tmp_path: Path) -> CommandLine:
    return CommandLine(node, tmp_path)


@pytest.fixture
def topic(node: Node) -> str:
    """A topic of two partitions, for one test."""
    name = f"cli-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic(name, 2)])[name].result(COMMAND_S_MAX)
    return name


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    """Asks again until it holds; a command's effect on a group has no signal to wait for."""
    deadline_s = time.monotonic() + COMMAND_S_MAX
    while not condition():
        assert time.monotonic() < deadline_s, f"never happened: {what}"


def test_a_topic_from_creation_to_deletion(dovetail: CommandLine) -> None:
    """U4, K3: create, list, describe, alter, delete, with exit codes that mean something."""
    name = f"life-{uuid.uuid4().hex[:8]}"
    created = dovetail.json("topic", "create", name, "--partitions", "2", "--retention", "2d")
    assert created == {"topic": name, "partitions": 2, "config": {"retention.ms": "172800000"}}
    assert dovetail.run("topic", "create", name).returncode == ExitCode.EXISTS
    listed = {row["topic"]: row for row in dovetail.json("topic", "list")}
    assert listed[name] == {"topic": name, "partitions": 2, "records": 0, "internal": False}
    dovetail.ok("topic", "alter", name, "--partitions", "3", "--retention-bytes", "1MiB")
    described = dovetail.json("topic", "describe", name)
    assert [row["partition"] for row in described["partitions"]] == [0, 1, 2]
    config = {row["name"]: row for row in described["config"]}
    assert config["retention.ms"]["value"] == "172800000"
    assert config["retention.bytes"]["value"] == "1048576"
    dovetail.ok("topic", "alter", name, "--unset", "retention.bytes")
    config = {row["name"]: row for row in dovetail.json("topic", "describe", name)["config"]}
    assert config["retention.bytes"]["value"] == "-1"
    assert name in dovetail.ok("topic", "describe", name)
    assert dovetail.run("topic", "delete", name).returncode == ExitCode.USAGE
    dovetail.ok("topic", "delete", name, "--yes")
    assert dovetail.run("topic", "describe", name).returncode == ExitCode.NOT_FOUND
    assert dovetail.run("topic", "delete", name, "--yes").returncode == ExitCode.NOT_FOUND


@pytest.mark.parametrize("change", [("--unset", "retention.mss"), ("--config", "retention.mss=1")])
def test_an_unknown_topic_setting_is_refused(
    dovetail: CommandLine, topic: str, change: tuple[str, str]
) -> None:
    """K3, U7: a slip in a name is told with the nearest one, also where a setting is taken back."""
    done = dovetail.run("topic", "alter", topic, *change)
    assert done.returncode == ExitCode.USAGE
    assert "the nearest is 'retention.ms'" in done.stderr


def test_a_partition_that_does_not_exist(dovetail: CommandLine, topic: str) -> None:
    """U7: producing to one says which there are."""
    done = dovetail.run("produce", topic, "--value", "v", "--partition", "99")
    assert done.returncode == ExitCode.NOT_FOUND
    assert "has no partition 99, only 0 to 1" in done.stderr


def test_producing_to_no_topic_says_how_to_make_it(dovetail: CommandLine) -> None:
    """U7: at once, and not after the time that a record may wait, which can be long; with the
    command."""
    done = dovetail.run("produce", "never-made", "--timeout", "10m", given="hello\n")
    assert done.returncode == ExitCode.NOT_FOUND
    assert "dovetail topic create never-made" in done.stderr


def test_internal_topics_are_shown_only_when_asked_for(dovetail: CommandLine, topic: str) -> None:
    """U4: the node's own topics are marked, and hidden without --all."""
    dovetail.ok("consume", topic, "--group", f"group-{uuid.uuid4().hex[:8]}")
    internal = {row["topic"] for row in dovetail.json("topic", "list", "--all") if row["internal"]}
    assert "__dovetail_groups" in internal
    assert not internal & {row["topic"] for row in dovetail.json("topic", "list")}


def test_an_interrupted_produce_tells_what_was_acknowledged(
    dovetail: CommandLine, topic: str
) -> None:
    """U7: Ctrl-C ends with 130 and the number of records that are stored."""
    producing = dovetail.start("produce", topic)
    try:
        assert producing.stdin is not None
        producing.stdin.write("one\ntwo\n")
        producing.stdin.flush()
        wait_until("both are stored", lambda: dovetail.ok("consume", topic).count("\n") == 2)
        producing.send_signal(signal.SIGINT)
        _, stderr = producing.communicate(timeout=COMMAND_S_MAX)
    finally:
        producing.kill()
    assert producing.returncode == ExitCode.INTERRUPTED
    assert "2 records acknowledged before the interruption" in stderr


def test_fewer_partitions_are_refused(dovetail: CommandLine, topic: str) -> None:
    """K3, U7: a request that the node refuses is told with its reason."""
    done = dovetail.run("topic", "alter", topic, "--partitions", "1")
    assert done.returncode == ExitCode.USAGE
    assert topic in done.stderr


def test_lines_go_in_and_come_out(dovetail: CommandLine, topic: str) -> None:
    """U4, K1: keys, values and headers survive the way through the node, in order per key."""
    lines = "".join(f"k{number % 5}:v{number}\n" for number in range(200))
    sent = dovetail.json("produce", topic, "-K", ":", "-H", "source=test", given=lines)
    assert sent["records"] == 200
    read = [json.loads(line) for line in dovetail.ok("consume", topic, "--json").splitlines()]
    assert sorted(f"{row['key']}:{row['value']}" for row in read) == sorted(lines.splitlines())
    assert all(row["headers"] == [["source", "test"]] for row in read)
    assert all(row["topic"] == topic and row["timestamp_ms"] > 0 for row in read)
    for key in (f"k{number}" for number in range(5)):
        of_key = [int(row["value"][1:]) for row in read if row["key"] == key]
        assert of_key == sorted(of_key)
    text = dovetail.ok("consume", topic, "--keys", "--headers").splitlines()
    assert "source=test\tk0\tv0" in text


def test_where_to_begin_and_when_to_stop(dovetail: CommandLine, topic: str) -> None:
    """U4: from the beginning, the end, an offset or a time; as many as asked for."""
    for number in range(5):
        dovetail.ok("produce", topic, "--value", f"v{number}", "--partition", "0")
    assert dovetail.ok("consume", topic) == "v0\nv1\nv2\nv3\nv4\n"
    assert dovetail.ok("consume", topic, "--count", "2") == "v0\nv1\n"
    assert dovetail.ok("consume", topic, "--from", "3") == "v3\nv4\n"
    assert dovetail.ok("consume", topic, "--from", "end") == ""
    assert dovetail.ok("consume", topic, "--partition", "1") == ""
    rows = [json.loads(line) for line in dovetail.ok("consume", topic, "--json").splitlines()]
    moment = rows[3]["time"]
    assert dovetail.ok("consume", topic, "--from", moment) == "v3\nv4\n"
    assert dovetail.ok("consume", topic, "--from", "2999-01-01") == ""
    assert dovetail.run("consume", topic, "--partition", "7").returncode == ExitCode.NOT_FOUND


def test_binary_values_stay_whole_in_json(dovetail: CommandLine, topic: str) -> None:
    """U4: bytes that are no text are told as base64, not mangled."""
    from confluent_kafka import Producer

    bootstrap = dovetail._environment["DOVETAIL_CLIENT_BOOTSTRAP"]
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, value=b"\xff\x00", key=None)
    assert producer.flush(30) == 0
    row = json.loads(dovetail.ok("consume", topic, "--json"))
    assert row["value"] == {"base64": "/wA="}
    assert row["key"] is None


def test_follow_waits_for_more_and_ends_cleanly_on_ctrl_c(
    dovetail: CommandLine, topic: str
) -> None:
    """U4: `--follow` prints what comes; Ctrl-C ends it with success and without noise."""
    follower = dovetail.start("consume", topic, "--follow")
    try:
        assert follower.stdout is not None
        for number in range(3):
            dovetail.ok("produce", topic, "--value", f"v{number}")
            assert follower.stdout.readline() == f"v{number}\n"
        follower.send_signal(signal.SIGINT)
        _, stderr = follower.communicate(timeout=COMMAND_S_MAX)
        assert follower.returncode == ExitCode.OK
        assert stderr == ""
    finally:
        follower.kill()


def test_a_generated_load(dovetail: CommandLine, topic: str) -> None:
    """U4: `--count` sends so many records of so many bytes."""
    sent = dovetail.json("produce", topic, "--count", "10000", "--bytes", "50")
    assert (sent["records"], sent["bytes"]) == (10_000, 500_000)
    assert dovetail.ok("consume", topic, "--count", "10000").count("\n") == 10_000


def test_a_record_that_is_too_large_is_refused(dovetail: CommandLine, topic: str) -> None:
    """U7: the one that is too large is told, with what was acknowledged before it."""
    done = dovetail.run("produce", topic, given="small\n" + "x" * 3_000_000 + "\n")
    assert done.returncode == ExitCode.USAGE
    assert "1 record was acknowledged, 1 was not" in done.stderr


def test_a_line_without_a_key_ends_the_input(dovetail: CommandLine, topic: str) -> None:
    """U7: a bad line is told with its number, and what came before it is stored and counted."""
    done = dovetail.run("produce", topic, "-K", ":", given="a:1\nb:2\nnonsense\nc:3\n")
    assert done.returncode == ExitCode.USAGE
    assert "line 3 has no key separator ':'" in done.stderr
    assert "2 records were acknowledged, 0 were not" in done.stderr
    assert sorted(dovetail.ok("consume", topic).splitlines()) == ["1", "2"]


def test_a_group_resumes_where_it_stopped(dovetail: CommandLine, topic: str) -> None:
    """U4, K7: a group reads each record once, shows its lag, and can be moved."""
    group = f"group-{uuid.uuid4().hex[:8]}"
    lines = "".join(f"v{number}\n" for number in range(10))
    dovetail.ok("produce", topic, "--partition", "0", given=lines)
    assert dovetail.ok("consume", topic, "--group", group) == lines
    dovetail.ok("produce", topic, "--partition", "0", "--value", "late")
    described = dovetail.json("group", "describe", group)
    of_zero = next(row for row in described["partitions"] if row["partition"] == 0)
    assert (of_zero["committed"], of_zero["end"], of_zero["lag"]) == (10, 11, 1)
    assert described["lag"] == 1
    assert group in dovetail.ok("group", "list")
    assert dovetail.ok("consume", topic, "--group", group) == "late\n"

    dovetail.ok("topic", "alter", topic, "--partitions", "3")
    described = dovetail.json("group", "describe", group)
    of_two = next(row for row in described["partitions"] if row["partition"] == 2)
    assert (of_two["committed"], of_two["lag"]) == (None, None)
    planned = dovetail.json("group", "reset", group, "--to", "earliest", "--dry-run")
    assert [row["partition"] for row in planned["partitions"]] == [0, 1, 2]
    assert planned["changed"] is False
    assert dovetail.ok("consume", topic, "--group", group) == ""
    moved = dovetail.json("group", "reset", group, "--to", "9", "--topic", topic)
    of_zero = next(row for row in moved["partitions"] if row["partition"] == 0)
    assert (of_zero["before"], of_zero["after"]) == (11, 9)
    assert dovetail.ok("consume", topic, "--group", group) == "v9\nlate\n"


def test_a_group_with_members_is_not_moved(dovetail: CommandLine, topic: str) -> None:
    """U7: a running member would overwrite the position, so the reset is refused and says so."""
    group = f"busy-{uuid.uuid4().hex[:8]}"
    member = dovetail.start("consume", topic, "--group", group, "--follow")
    try:
        wait_until(
            "the member owns both partitions",
            lambda: (
                group in {row["group"] for row in dovetail.json("group", "list")}
                and len(dovetail.json("group", "describe", group)["partitions"]) == 2
            ),
        )
        done = dovetail.run("group", "reset", group, "--to", "latest", "--topic", topic)
        assert done.returncode == ExitCode.FAILED
        assert "active members (1)" in done.stderr
        member.send_signal(signal.SIGINT)
        member.communicate(timeout=COMMAND_S_MAX)
        assert member.returncode == ExitCode.OK
        dovetail.ok("group", "reset", group, "--to", "latest", "--topic", topic)
    finally:
        member.kill()


@pytest.mark.parametrize(
    "command",
    [
        ("consume", "absent"),
        ("topic", "describe", "absent"),
        ("topic", "alter", "absent", "--partitions", "2"),
        ("topic", "delete", "absent", "--yes"),
        ("group", "describe", "absent"),
        ("group", "reset", "absent", "--to", "earliest"),
    ],
)
def test_what_does_not_exist_is_exit_code_3(
    dovetail: CommandLine, command: tuple[str, ...]
) -> None:
    """U4, U7: not found is told as such, and asking creates nothing."""
    done = dovetail.run(*command)
    assert done.returncode == ExitCode.NOT_FOUND
    assert "absent" in done.stderr
    assert "absent" not in {row["topic"] for row in dovetail.json("topic", "list")}


def test_bench_measures_and_cleans_up(dovetail: CommandLine) -> None:
    """U4: `bench` tells both rates and leaves no topic behind."""
    report = dovetail.json("bench", "--messages", "5000", "--bytes", "100", "--partitions", "2")
    assert [phase["phase"] for phase in report["phases"]] == ["produce", "consume"]
    assert all(phase["messages"] == 5000 for phase in report["phases"])
    assert all(phase["messages_per_second"] > 0 for phase in report["phases"])
    topics = {row["topic"] for row in dovetail.json("topic", "list")}
    assert not any(name.startswith("dovetail-bench-") for name in topics)


def test_a_reader_that_has_had_enough_is_no_error(dovetail: CommandLine, topic: str) -> None:
    """U4: `dovetail consume ... | head` ends quietly."""
    dovetail.ok("produce", topic, "--count", "50000", "--bytes", "100")
    reader = dovetail.start("consume", topic)
    assert reader.stdout is not None
    assert reader.stderr is not None
    try:
        reader.stdout.readline()
        reader.stdout.close()
        assert reader.wait(COMMAND_S_MAX) == ExitCode.OK
        assert reader.stderr.read() == ""
    finally:
        reader.kill()
        reader.stderr.close()
        assert reader.stdin is not None
        reader.stdin.close()
