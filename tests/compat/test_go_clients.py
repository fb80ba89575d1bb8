"""Clients of Go: transactions, groups and shares; they skip where there is no Go."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.compat.server import TopicMaker
from tests.compat.test_share_groups import make_topic
from tests.compat.test_transactions import committed

PROJECT = Path(__file__).resolve().parent / "golang"
#: Time to fetch the clients and to compile them, once on a machine.
BUILD_SECONDS_MAX = 600
RUN_SECONDS_MAX = 90


class Node(NamedTuple):
    """Where clients reach it."""

    bootstrap: str


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("go") is None:
        pytest.skip("the clients of Go need the program go")
    made = tmp_path_factory.mktemp("golang") / "clients"
    built = subprocess.run(
        ["go", "build", "-o", str(made), "."],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS_MAX,
        check=False,
    )
    if built.returncode != 0:
        pytest.skip(f"Go could not fetch or build the clients: {built.stderr[-500:]}")
    return made


@pytest.mark.timeout(BUILD_SECONDS_MAX + RUN_SECONDS_MAX)
@pytest.mark.parametrize("client", ["franz", "sarama", "kafka-go"])
def test_clients_of_go_write_and_read_in_transactions(
    bootstrap: str, program: Path, topic_maker: TopicMaker, client: str
) -> None:
    """K8, K14: commits and aborts over three partitions; its reader sees what librdkafka's does.
    kafka-go has no transactions: it writes, and two readers of a group follow each other. Green on
    Apache Kafka 4.3 too."""
    topic = topic_maker(partitions=3)
    wanted = sorted(f"{client}/{number}/{at}".encode() for number in (0, 2) for at in range(6))
    assert sorted(line.encode() for line in _said(program, client, bootstrap, topic)) == wanted
    assert committed(bootstrap, topic, 3) == wanted


@pytest.mark.timeout(BUILD_SECONDS_MAX + RUN_SECONDS_MAX)
def test_a_share_consumer_of_go(bootstrap: str, program: Path, new_name: Callable[[], str]) -> None:
    """K10, K14: franz-go accepts, releases, renews and rejects; what was released comes a second
    time, and another member gets nothing of it any more."""
    topic = make_topic(Node(bootstrap), new_name(), {})
    wanted = {f"{number}/{2 if number % 3 == 1 else 1}" for number in range(30)} | {"last/1"}
    assert set(_said(program, "franz-share", bootstrap, topic)) == wanted


def _said(program: Path, *given: str) -> list[str]:
    done = subprocess.run(
        [program, *given], capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
