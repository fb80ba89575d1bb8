"""Backup and restore with real nodes: the machine is lost, and everything acknowledged is there."""

import asyncio
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tests import warm_python
from tests.conftest import NodeFactory, RunningNode
from tests.process.access.certificates import Authority
from tests.process.access.guarded import admin_settings, guarded_node
from tests.process.checker import Workload, read_all, value_of

import dovetail
from dovetail.backup.archive import Archive
from dovetail.backup.restoring import MARK
from dovetail.cli.outcome import ExitCode
from dovetail.timeline.message import MessageId

PARTITIONS = 3
#: Segments and ledgers end every moment, and old ledgers go, all through the backup.
SMALL = {
    "storage_segment_bytes": "65536",
    "log_ledger_bytes_max": "16384",
    "log_retention_check_ms": "20",
}


def dovetail_run(
    *arguments: str | Path, environment: dict[str, str] | None = None, limit_bytes: int = 0
) -> "subprocess.CompletedProcess[str]":
    """A command in a process of its own, whose files may have so many bytes."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("DOVETAIL_")}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        return subprocess.run(
            [sys.executable, "-m", "dovetail", *map(str, arguments)],
            env=inherited | (environment or {}),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        if limit_bytes:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


def take(node: RunningNode, file: Path) -> dict[str, object]:
    done = dovetail_run("backup", file, "--http", node.http_url, "--json")
    assert done.returncode == ExitCode.OK, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_the_machine_is_lost_and_everything_acknowledged_is_there(
    node_factory: NodeFactory, tmp_path: Path
) -> None:
    """R9: taken under load, while ledgers roll and go; the folder is lost; restored elsewhere."""
    node = node_factory(**SMALL)
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    made = admin.create_topics(
        [
            NewTopic("kept", PARTITIONS, 1),
            NewTopic("passing", PARTITIONS, 1, config={"retention.bytes": "20000"}),
        ]
    )
    for future in made.values():
        future.result(30)

    loads = [Workload(node.bootstrap, topic, partitions=PARTITIONS) for topic in made]
    for load in loads:
        load.start()
    loads[0].wait_for(2_000)
    scheduled = asyncio.run(_schedule(node.bootstrap, "before"))
    committed = _commit_position(node.bootstrap, 77)
    _end_transaction(node.bootstrap)
    acknowledged = {p: len(loads[0].acknowledged[p]) for p in range(PARTITIONS)}
    take(node, tmp_path / "node.tar")
    loads[0].wait_for(loads[0].acknowledged_count + 500)
    for load in loads:
        load.finish()
    node.kill()
    shutil.rmtree(node.data_dir)

    again = RunningNode(tmp_path / "again", SMALL)
    restored = dovetail_run("restore", tmp_path / "node.tar", "--data-dir", again.data_dir)
    assert restored.returncode == ExitCode.OK, restored.stderr
    again.start()
    try:
        for partition in range(PARTITIONS):
            found = read_all(again.bootstrap, "kept", partition)
            assert found == [(n, value_of(partition, n)) for n in range(len(found))]
            assert acknowledged[partition] <= len(found) < loads[0].sent[partition]
        assert _position(again.bootstrap) == committed
        assert [value for _, value in read_all(again.bootstrap, "moved", 0)] == [b"whole"]
        # Read and write go on, under new numbers; the old ones are where they were.
        _write_on(again.bootstrap)
        later = asyncio.run(_schedule(again.bootstrap, "after"))
        assert later > scheduled + 100_000
        assert asyncio.run(_lookup(again.bootstrap, scheduled)) == b"before"
        assert "damaged" not in again.log()
        assert "out of service" not in again.log()
    finally:
        again.kill()


async def _schedule(bootstrap: str, body: str) -> MessageId:
    async with dovetail.connect(bootstrap) as client:
        timeline = client.timeline("reminders")
        if body == "before":
            await timeline.create()
        return (await timeline.schedule(body.encode(), delay="1h")).id


async def _lookup(bootstrap: str, message: MessageId) -> bytes:
    async with dovetail.connect(bootstrap) as client:
        (found,) = await client.timeline("reminders").look_up(message)
        assert found is not None
        return found.body


def _commit_position(bootstrap: str, offset: int) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition("kept", 1, offset)], asynchronous=False)
    consumer.close()
    return offset


def _position(bootstrap: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "billing"})
    (found,) = consumer.committed([TopicPartition("kept", 1)], timeout=30)
    consumer.close()
    return found.offset


def _end_transaction(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("moved", 1, 1)])["moved"].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "mover"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("moved", b"whole")
    producer.commit_transaction(30)


def _write_on(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    producer.produce("kept", b"new", partition=0)
    assert producer.flush(30) == 0
    assert read_all(bootstrap, "kept", 0)[-1][1] == b"new"


def test_what_stands_in_the_way_is_said_and_leaves_nothing(
    node_factory: NodeFactory, tmp_path: Path
) -> None:
    """R9, F53: a file that exists, no room, no node, a live node's folder, a node that dies."""
    node = node_factory()
    file = tmp_path / "node.tar"
    http = ("--http", node.http_url)
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(30)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for _ in range(40):
        producer.produce("t", b"x" * 100_000)
    assert producer.flush(60) == 0

    full = dovetail_run("backup", file, *http, limit_bytes=1_000_000)
    assert (full.returncode, full.stderr.startswith("error: no room")) == (1, True), full.stderr
    away = dovetail_run("backup", file, "--http", "http://127.0.0.1:9")
    assert away.returncode == ExitCode.UNREACHABLE, away.stderr
    missing = dovetail_run("backup", tmp_path / "none" / "node.tar", *http)
    assert (missing.returncode, "cannot write" in missing.stderr) == (1, True), missing.stderr
    assert not [path for path in tmp_path.iterdir() if "tar" in path.name]

    take(node, file)
    there = dovetail_run("backup", file, *http)
    assert (there.returncode, "exists" in there.stderr) == (ExitCode.EXISTS, True)
    live = dovetail_run("restore", file, "--data-dir", node.data_dir)
    assert (live.returncode, "not empty" in live.stderr) == (ExitCode.EXISTS, True)
    half = tmp_path / "half"
    half.mkdir()
    (half / MARK).touch()
    refused = dovetail_run("up", "--data-dir", half)
    assert (refused.returncode, "restore` again" in refused.stderr) == (ExitCode.USAGE, True)

    _die_in_the_middle(node, tmp_path / "killed.tar")


def _die_in_the_middle(node: RunningNode, file: Path) -> None:
    command = [sys.executable, "-m", "dovetail", "backup", str(file), "--http", node.http_url]
    running = warm_python.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ})
    # The node stands still in the middle of what it sends, and then dies.
    part = file.with_name(file.name + ".part")
    # On a busy machine it may have ended between two looks.
    while not _has_begun(part) and running.poll() is None:
        pass
    node.pause()
    os.kill(node.pid, signal.SIGKILL)
    _, said = running.communicate(timeout=120)
    assert not part.exists()
    if running.returncode:
        assert re.search("cannot reach|not complete|not a whole", said), said
        assert not file.exists()
        return
    # All of it was on its way before: then it is whole.
    with Archive(file) as archive:
        archive.check()


def _has_begun(part: Path) -> bool:
    try:
        return part.stat().st_size > 0
    except FileNotFoundError:
        return False


def test_a_node_that_dies_half_way_leaves_no_file(
    node_factory: NodeFactory, tmp_path: Path
) -> None:
    """R9: as does a connection that breaks, wherever it breaks; the command fails and says so."""
    node = node_factory()
    whole = tmp_path / "whole.tar"
    take(node, whole)
    sent = whole.read_bytes()
    for size in (0, 300, len(sent) // 2, len(sent) - 2048):
        with _cut_short(sent[:size]) as address:
            file = tmp_path / "half.tar"
            done = dovetail_run("backup", file, "--http", address)
        assert done.returncode not in (ExitCode.OK, ExitCode.EXISTS), size
        assert not [path for path in tmp_path.iterdir() if path.name.startswith("half")], size


@contextlib.contextmanager
def _cut_short(content: bytes) -> Iterator[str]:
    """An HTTP server, or a proxy before one, that sends so much and closes the connection."""

    class Half(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n" + content)

    with ThreadingHTTPServer(("127.0.0.1", 0), Half) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_a_guarded_node_gives_its_backup_to_who_has_the_token(tmp_path: Path) -> None:
    """R9, R4: TLS, login and a token; users and rules are restored with the rest."""
    authority = Authority(tmp_path)
    token = "a-token-of-enough-characters"
    node = guarded_node(tmp_path, authority, http_token=token)
    node.start()
    file = tmp_path / "node.tar"
    trust = {"DOVETAIL_CLIENT_TLS_CA": authority.file}
    try:
        made = AdminClient({"bootstrap.servers": node.bootstrap, **admin_settings(authority)})
        made.create_topics([NewTopic("secret", 1, 1)])["secret"].result(30)
        how = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        user = UserScramCredentialUpsertion("shop", how, b"of the shop")
        made.alter_user_scram_credentials([user])["shop"].result(30)
        stranger = dovetail_run("backup", file, "--http", node.http_url, environment=trust)
        assert (stranger.returncode, "requires a token" in stranger.stderr) == (1, True)
        trust["DOVETAIL_HTTP_TOKEN"] = token
        done = dovetail_run("backup", file, "--http", node.http_url, environment=trust)
        assert done.returncode == ExitCode.OK, done.stderr
        assert file.stat().st_mode & 0o777 == 0o600
    finally:
        node.kill()
    shutil.rmtree(node.data_dir)

    restored = dovetail_run("restore", file, "--data-dir", node.data_dir)
    assert restored.returncode == ExitCode.OK, restored.stderr
    node.start()
    try:
        shop = admin_settings(authority) | {"sasl.username": "shop", "sasl.password": "of the shop"}
        seen = AdminClient({"bootstrap.servers": node.bootstrap, **shop})
        assert "secret" not in seen.list_topics(timeout=30).topics
        seen = AdminClient({"bootstrap.servers": node.bootstrap, **admin_settings(authority)})
        assert "secret" in seen.list_topics(timeout=30).topics
    finally:
        node.kill()
