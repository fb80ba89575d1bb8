"""Who may come in, and what they may do, on a real node with real clients."""

import asyncio
import json
import os
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from tests import warm_python
from tests.cluster_processes import wait_until
from tests.conftest import RunningNode
from tests.process.access.certificates import Authority
from tests.process.access.guarded import PASSWORD, admin_settings, guarded_node

from dovetail.errors import Forbidden, ProtocolViolation, Refused, Unavailable
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import KafkaClient
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.apis import ApiKey
from dovetail.kafka.codec.frames import encode_request
from dovetail.kafka.codec.headers import RequestHeader
from dovetail.timeline.client import connect

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("access")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture(scope="module")
def guarded(folder: Path, authority: Authority) -> Iterator[RunningNode]:
    node = guarded_node(folder, authority)
    node.start()
    try:
        yield node
    finally:
        node.kill()


class Client:
    """How one user connects."""

    def __init__(
        self, node: RunningNode, authority: Authority, user: str, password: str, how: str
    ) -> None:
        self.config: dict[str, Any] = {
            "bootstrap.servers": node.bootstrap,
            **admin_settings(authority, how),
            "sasl.username": user,
            "sasl.password": password,
            "log_level": 0,
            "socket.timeout.ms": 10_000,
        }

    def admin(self) -> AdminClient:
        return AdminClient(self.config)

    def produce(self, topic: str, value: bytes = b"x", *, seconds_max: int = 25) -> str:
        """The error's name, or "" when it is stored."""
        outcome: list[str] = []
        producer = Producer({**self.config, "message.timeout.ms": seconds_max * 1000})
        producer.produce(
            topic, value, on_delivery=lambda error, _: outcome.append(error.name() if error else "")
        )
        producer.flush(DEADLINE_S)
        return outcome[0] if outcome else "NOTHING"

    def consume(self, topic: str, group: str) -> tuple[list[bytes], str]:
        """What there is, and the error that ended it."""
        consumer = Consumer(
            {
                **self.config,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
            }
        )
        with closing(consumer):
            consumer.subscribe([topic])
            found: list[bytes] = []
            while True:
                message = consumer.poll(DEADLINE_S)
                if message is None:
                    return found, "SILENCE"
                error = message.error()
                if error is None:
                    found.append(message.value() or b"")
                elif error.code() == KafkaError._PARTITION_EOF:
                    return found, ""
                else:
                    return found, error.name()


@pytest.fixture(scope="module")
def as_user(guarded: RunningNode, authority: Authority) -> Any:
    def make(user: str, password: str = PASSWORD, how: str = "SCRAM-SHA-256") -> Client:
        return Client(guarded, authority, user, password, how)

    return make


@pytest.fixture(scope="module")
def dovetail(guarded: RunningNode, authority: Authority) -> Any:
    """The command line as the admin."""

    def run(*arguments: str, given: str = "", as_user: str = "admin", code: int = 0) -> str:
        environment = {
            **{name: value for name, value in os.environ.items() if name == "PYTHONPATH"},
            "PATH": str(Path(sys.executable).parent),
            "DOVETAIL_CLIENT_BOOTSTRAP": guarded.bootstrap,
            "DOVETAIL_CLIENT_TLS": "true",
            "DOVETAIL_CLIENT_TLS_CA": authority.file,
            "DOVETAIL_CLIENT_USER": as_user,
            "DOVETAIL_CLIENT_PASSWORD": PASSWORD,
        }
        done = warm_python.run(
            [sys.executable, "-m", "dovetail", *arguments],
            input=given,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == code, done.stderr
        return done.stderr if code else done.stdout

    return run


def log_in(client: Client) -> str:
    """Whether the node lets the client in: the first that happens, an answer or an error."""
    errors: list[str] = []
    producer = Producer({**client.config, "error_cb": lambda error: errors.append(error.name())})
    ends = time.monotonic() + DEADLINE_S
    while time.monotonic() < ends:
        try:
            producer.list_topics(timeout=0.2)
        except KafkaException:
            producer.poll(0)
            if "_AUTHENTICATION" in errors:
                return "_AUTHENTICATION"
        else:
            return ""
    raise AssertionError(f"neither let in nor sent away; {errors}")


@pytest.mark.parametrize("how", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_a_user_logs_in_with_the_password_and_only_with_it(as_user: Any, how: str) -> None:
    """R4: by each mechanism; a wrong password and a name that nobody has are refused."""
    assert log_in(as_user("admin", how=how)) == ""
    assert log_in(as_user("admin", "wrong", how)) == "_AUTHENTICATION"
    assert log_in(as_user("nobody", how=how)) == "_AUTHENTICATION"


@pytest.mark.parametrize("how", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_the_client_of_spark_logs_in(guarded: RunningNode, authority: Authority, how: str) -> None:
    """R4, T9: by each mechanism over TLS; who is refused is told so at once."""
    settings = admin_settings(authority, how)
    with closing(KafkaClient(Brokers.at(guarded.bootstrap, settings))) as client:
        assert client.partitions(["by-spark"], create=True)["by-spark"]
    refused = Brokers.at(guarded.bootstrap, {**settings, "sasl.password": "wrong"})
    with closing(KafkaClient(refused)) as client, pytest.raises(Forbidden):
        client.partitions(None)


def test_the_client_of_spark_shows_a_certificate(
    guarded: RunningNode, authority: Authority, dovetail: Any
) -> None:
    """R4, T9: its common name is who asks."""
    dovetail("access", "allow", "spark", "all", "--topic", "sparks")
    files = authority.issue("spark")
    settings = {
        "security.protocol": "SSL",
        "ssl.ca.location": authority.file,
        "ssl.certificate.location": files.certificate,
        "ssl.key.location": files.key,
    }
    with closing(KafkaClient(Brokers.at(guarded.bootstrap, settings))) as client:
        assert client.partitions(["sparks"], create=True)["sparks"]
        with pytest.raises(Forbidden, match="AUTHORIZATION"):
            client.partitions(["others"], create=True)


def test_the_client_of_spark_trusts_nobody_else(
    guarded: RunningNode, authority: Authority, tmp_path: Path
) -> None:
    """R4, T9: neither another authority, nor a listener without what it asks for."""
    settings = {**admin_settings(authority), "ssl.ca.location": Authority(tmp_path).file}
    with (
        closing(KafkaClient(Brokers.at(guarded.bootstrap, settings))) as client,
        pytest.raises(Refused, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        client.partitions(None)
    plain = KafkaClient(Brokers(guarded.bootstrap), timeout_s=1)
    with closing(plain), pytest.raises((Unavailable, ProtocolViolation)):
        plain.partitions(None)


async def test_another_client_logs_in(guarded: RunningNode, authority: Authority) -> None:
    """R4: aiokafka, SCRAM over TLS."""
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        bootstrap_servers=guarded.bootstrap,
        security_protocol="SASL_SSL",
        ssl_context=ssl.create_default_context(cafile=authority.file),
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username="admin",
        sasl_plain_password=PASSWORD,
    )
    async with asyncio.timeout(DEADLINE_S):
        await producer.start()
        try:
            await producer.send_and_wait("by-aiokafka", b"hello")
        finally:
            await producer.stop()


def test_nothing_is_answered_before_the_login(guarded: RunningNode, authority: Authority) -> None:
    """R4: not in plain text, and over TLS nothing but the login."""
    host, _, port = guarded.bootstrap.rpartition(":")
    header = RequestHeader(int(ApiKey.METADATA), 9, 1, "stranger")
    request = b"".join(
        encode_request(header, m.MetadataRequest(topics=None, allow_auto_topic_creation=False))
    )
    with socket.create_connection((host, int(port)), DEADLINE_S) as plain:
        plain.sendall(request)
        assert not plain.recv(1000).startswith(b"\x00")
    context = ssl.create_default_context(cafile=authority.file)
    with (
        socket.create_connection((host, int(port)), DEADLINE_S) as raw,
        context.wrap_socket(raw, server_hostname=host) as line,
    ):
        line.sendall(request)
        assert line.recv(1000) == b""
    # The private requests of storage nodes and those of timelines begin at these keys.
    for key in (10_000, 11_000):
        with (
            socket.create_connection((host, int(port)), DEADLINE_S) as raw,
            context.wrap_socket(raw, server_hostname=host) as line,
        ):
            frame = key.to_bytes(2, "big") + bytes(2) + bytes(4) + b"\x00\x01x" + bytes(8)
            line.sendall(len(frame).to_bytes(4, "big") + frame)
            assert line.recv(1000) == b""


def test_a_stranger_announces_little(guarded: RunningNode, authority: Authority) -> None:
    """F40: before login a frame of more than 64 KiB is refused when its length is read."""
    host, _, port = guarded.bootstrap.rpartition(":")
    context = ssl.create_default_context(cafile=authority.file)
    for size in (64 * 1024 + 1, 7 << 20):
        with (
            socket.create_connection((host, int(port)), 5) as raw,
            context.wrap_socket(raw, server_hostname=host) as line,
        ):
            line.sendall(size.to_bytes(4, "big"))
            assert line.recv(1000) == b""
    assert f"is outside 1 to {64 * 1024} before login" in guarded.log()


def test_what_no_rule_allows_is_refused(as_user: Any, dovetail: Any) -> None:
    """R4: deny by default; by name, by beginning, by operation; who denies is stronger."""
    dovetail("user", "set", "alice", given=f"{PASSWORD}\n")
    dovetail("topic", "create", "orders-eu")
    dovetail("topic", "create", "orders-us")
    dovetail("topic", "create", "other")
    alice = as_user("alice")
    assert alice.admin().list_topics(timeout=10).topics == {}
    assert alice.produce("orders-eu") == "TOPIC_AUTHORIZATION_FAILED"
    dovetail("access", "allow", "alice", "write", "--topic", "orders*")
    assert set(alice.admin().list_topics(timeout=10).topics) == {"orders-eu", "orders-us"}
    assert alice.produce("orders-eu", b"one") == ""
    assert alice.produce("other") == "TOPIC_AUTHORIZATION_FAILED"
    assert alice.consume("orders-eu", "alices")[1] == "GROUP_AUTHORIZATION_FAILED"
    dovetail("access", "allow", "alice", "read", "--topic", "orders*", "--group", "alices")
    assert alice.consume("orders-eu", "alices") == ([b"one"], "")
    dovetail("access", "deny", "alice", "write", "--topic", "orders-us")
    assert alice.produce("orders-us") == "TOPIC_AUTHORIZATION_FAILED"
    assert alice.produce("orders-eu", b"two") == ""
    admin = alice.admin()
    for refused in admin.delete_topics(["orders-eu"]).values():
        with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
            refused.result(DEADLINE_S)


def test_positions_want_a_rule(as_user: Any, dovetail: Any) -> None:
    """F50: positions are shown for topics that one may see; who may write gets a producer id."""
    dovetail("user", "set", "grace", given=f"{PASSWORD}\n")
    dovetail("topic", "create", "hidden")
    dovetail("access", "allow", "grace", "read", "--group", "shared")
    admin, grace = as_user("admin").admin(), as_user("grace")
    group = ConsumerGroupTopicPartitions("shared", [TopicPartition("hidden", 0, 5)])
    admin.alter_consumer_group_offsets([group])["shared"].result(DEADLINE_S)

    def position(wanted: list[TopicPartition] | None) -> Any:
        asking = grace.admin()
        asked = asking.list_consumer_group_offsets([ConsumerGroupTopicPartitions("shared", wanted)])
        return asked["shared"].result(DEADLINE_S).topic_partitions

    assert position(None) == []
    [refused] = position([TopicPartition("hidden", 0)])
    assert refused.error.name() == "TOPIC_AUTHORIZATION_FAILED"

    dovetail("access", "allow", "grace", "write", "create", "--topic", "graces")
    dovetail("access", "allow", "grace", "describe", "--topic", "hidden")
    assert [found.offset for found in position(None)] == [5]
    grace.config["enable.idempotence"] = True
    assert grace.produce("graces") == ""


def test_transactional_ids_want_a_rule(as_user: Any, dovetail: Any) -> None:
    """K8, R4: to find its coordinator, to begin, and to write in its name."""
    dovetail("user", "set", "trudy", given=f"{PASSWORD}\n")
    dovetail("topic", "create", "paid")
    dovetail("access", "allow", "trudy", "write", "--topic", "paid")
    trudy = as_user("trudy")

    def transact() -> None:
        producer = Producer({**trudy.config, "transactional.id": "till-1", "log_level": 0})
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        producer.produce("paid", b"one")
        producer.commit_transaction(DEADLINE_S)

    with pytest.raises(KafkaException, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        transact()
    dovetail("access", "allow", "trudy", "write", "--transactional-id", "till*")
    transact()
    assert "transactional_id" in dovetail("access", "list")
    dovetail("access", "remove", "trudy", "write", "--transactional-id", "till*")
    with pytest.raises(KafkaException, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        transact()


def test_rules_are_listed_and_removed(as_user: Any, dovetail: Any) -> None:
    """R4, U4: the command line; only admins may change who may do what."""
    dovetail("user", "set", "carol", given=f"{PASSWORD}\n")
    dovetail("access", "allow", "carol", "all", "--topic", "carols", "--timeline", "due")
    listed = json.loads(dovetail("access", "list", "--user", "carol", "--json"))
    assert {(rule["kind"], rule["name"]) for rule in listed} == {
        ("topic", "carols"),
        ("timeline", "due"),
    }
    assert "carol" in {user["user"] for user in json.loads(dovetail("user", "list", "--json"))}
    carol = as_user("carol")
    assert carol.produce("carols") == ""
    assert "may not describe cluster" in dovetail("user", "list", as_user="carol", code=1)
    dovetail("access", "remove", "carol", "all", "--topic", "carols")
    assert carol.produce("carols") == "TOPIC_AUTHORIZATION_FAILED"
    dovetail("user", "delete", "carol", "--yes")
    assert log_in(carol) == "_AUTHENTICATION"


def test_a_changed_password_ends_the_connections_of_the_old_one(
    as_user: Any, dovetail: Any
) -> None:
    """R4: also those that are open."""
    dovetail("user", "set", "dave", given=f"{PASSWORD}\n")
    dovetail("access", "allow", "dave", "all", "--topic", "daves")
    failures: list[str] = []
    producer = Producer(
        {
            **as_user("dave").config,
            "message.timeout.ms": 6000,
            "error_cb": lambda error: failures.append(error.name()),
        }
    )
    producer.produce("daves", b"before")
    assert producer.flush(DEADLINE_S) == 0
    dovetail("user", "set", "dave", given="another one\n")
    lost: list[str] = []
    producer.produce("daves", b"after", on_delivery=lambda e, _: lost.append(e.name() if e else ""))
    producer.flush(DEADLINE_S)
    assert lost == ["_MSG_TIMED_OUT"]
    assert "_AUTHENTICATION" in failures
    assert as_user("dave", "another one").produce("daves") == ""


def test_a_certificate_says_who_a_client_is(
    guarded: RunningNode, authority: Authority, dovetail: Any
) -> None:
    """R4: mutual TLS, without a password; rules hold for the common name."""
    files = authority.issue("billing")
    dovetail("access", "allow", "billing", "write", "create", "--topic", "bills")
    client = Client(guarded, authority, "", "", "PLAIN")
    client.config = {
        name: value for name, value in client.config.items() if not name.startswith("sasl.")
    } | {
        "security.protocol": "SSL",
        "ssl.certificate.location": files.certificate,
        "ssl.key.location": files.key,
    }
    assert client.produce("bills") == ""
    assert client.produce("salaries") == "TOPIC_AUTHORIZATION_FAILED"
    stranger = Authority(Path(files.key).parent / "..").issue("billing2")
    client.config["ssl.certificate.location"] = stranger.certificate
    client.config["ssl.key.location"] = stranger.key
    assert client.produce("bills", seconds_max=5) != ""


async def test_timelines_want_a_login_and_a_rule(
    guarded: RunningNode, authority: Authority, dovetail: Any
) -> None:
    """R4: the same users, and rules on `timeline:NAME`; what may not be seen is not listed."""
    await asyncio.to_thread(dovetail, "user", "set", "frank", given=f"{PASSWORD}\n")
    tls = ssl.create_default_context(cafile=authority.file)

    def as_user(user: str, password: str = PASSWORD) -> Any:
        return connect(guarded.bootstrap, tls=tls, user=user, password=password)

    async with asyncio.timeout(DEADLINE_S), as_user("admin") as admin:
        await admin.timeline("due").create()
    with pytest.raises(Forbidden):
        async with as_user("frank", "wrong") as stranger:
            await stranger.timelines()
    async with asyncio.timeout(DEADLINE_S), as_user("frank") as frank:
        assert await frank.timelines() == []
        with pytest.raises(Forbidden, match="may not write"):
            await frank.timeline("due").schedule(b"x", delay="1h")
        await asyncio.to_thread(dovetail, "access", "allow", "frank", "write", "--timeline", "due")
        await frank.timeline("due").schedule(b"x", delay="1h", key="k")
        assert [name for name, _ in await frank.timelines()] == ["due"]
        with pytest.raises(Forbidden, match="may not read"):
            await frank.timeline("due").look_up_key("k")


def test_the_console_comes_in_at_its_own_listener(
    guarded: RunningNode, authority: Authority, dovetail: Any
) -> None:
    """R4, U5: the node's own clients log in too; its user is nobody else's."""
    dovetail("topic", "create", "for-the-console")
    assert guarded.http_url.startswith("https://")
    trusting = ssl.create_default_context(cafile=authority.file)
    with httpx.Client(base_url=guarded.http_url, verify=trusting, timeout=DEADLINE_S) as client:
        assert "for-the-console" in client.get("/v1/topics").text
        assert client.get("/v1/timelines").status_code == 200
    assert all(
        not user["user"].startswith("__") for user in json.loads(dovetail("user", "list", "--json"))
    )


def _shown_at(door: str, trusting: ssl.SSLContext) -> bytes | None:
    """The certificate that a listener shows."""
    host, port = door.rsplit(":", 1)
    with (
        socket.create_connection((host, int(port)), DEADLINE_S) as plain,
        trusting.wrap_socket(plain, server_hostname=host) as secured,
    ):
        return secured.getpeercert(binary_form=True)


def test_who_signs_in_over_https_is_known_over_nothing_else(tmp_path: Path) -> None:
    """R4, U5, R5: the cookie is marked so; a certificate that is none is told at the start, one
    that was renewed is shown without a restart, and one that is broken leaves the old one."""
    authority, token = Authority(tmp_path), "sixteen-characters"
    node = guarded_node(tmp_path, authority, http_token=token)
    trusting = ssl.create_default_context(cafile=authority.file)
    try:
        node.start()
        with httpx.Client(base_url=node.http_url, verify=trusting, timeout=DEADLINE_S) as browser:
            assert browser.get("/v1/topics").status_code == 401
            answer = browser.post(
                "/v1/session", json={"token": token}, headers={"origin": node.http_url}
            )
            assert "Secure" in answer.headers["set-cookie"]
            assert browser.get("/v1/topics").status_code == 200

        doors = [node.bootstrap, node.http_url.removeprefix("https://")]
        first = [_shown_at(door, trusting) for door in doors]
        files = tmp_path / "node-1.pem", tmp_path / "node-1.key"
        whole = [file.read_bytes() for file in files]
        files[1].write_text("no key")
        wait_until(
            "both listeners say so",
            lambda: node.log().count("new certificates cannot be used") == 2,
        )
        assert [_shown_at(door, trusting) for door in doors] == first
        files[1].write_bytes(whole[1])
        authority.issue("node-1")
        wait_until(
            "both show the new one",
            lambda: all(_shown_at(door, trusting) not in first for door in doors),
        )
    finally:
        node.kill()
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("no certificate")
    lost = guarded_node(tmp_path, authority, http_tls_certificate=str(nonsense))
    lost.launch()
    assert lost.wait() != 0
    lost.kill()
    assert f"no usable certificate in {nonsense}" in lost.log()


def test_users_and_rules_survive_kill_9(guarded: RunningNode, as_user: Any, dovetail: Any) -> None:
    """R4: they are kept like everything else; the first password is for the first start only."""
    dovetail("user", "set", "erin", given=f"{PASSWORD}\n")
    dovetail("access", "allow", "erin", "all", "--topic", "erins")
    guarded.kill()
    guarded.start()
    assert as_user("erin").produce("erins") == ""
    assert as_user("erin").produce("admins") == "TOPIC_AUTHORIZATION_FAILED"
