"""The Java client. Java and Maven are a large thing to ask for, so this skips where they miss."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.compat import jvm
from tests.compat.drivers import kafkajs
from tests.compat.jvm import BUILD_SECONDS_MAX

PROJECT = Path(__file__).resolve().parent / "java"
ROOT = PROJECT.parent.parent.parent
RUN_SECONDS_MAX = 60


@pytest.fixture(scope="module")
def classes() -> Path:
    """The compiled scenario, beside the client's libraries."""
    return jvm.build(PROJECT)


@pytest.mark.timeout(BUILD_SECONDS_MAX + RUN_SECONDS_MAX)
def test_java_client_works_with_every_codec_and_by_group(
    bootstrap: str, classes: Path, new_name: Callable[[], str]
) -> None:
    """K1, K2, K3, K4, K7: the Java client produces, reads, commits, resumes and administers."""
    run(classes, "Scenario", bootstrap, new_name())


@pytest.mark.timeout(BUILD_SECONDS_MAX + RUN_SECONDS_MAX)
def test_what_kafkas_admin_tools_ask_is_answered(
    bootstrap: str, classes: Path, new_name: Callable[[], str]
) -> None:
    """K12, K13, F78: settings, log dirs, elections, reassignments, quotas, features, quorum, users;
    green on Apache Kafka 4.3 too."""
    run(classes, "AdminScenario", bootstrap, new_name())


@pytest.mark.timeout(BUILD_SECONDS_MAX + RUN_SECONDS_MAX)
def test_java_consumers_of_the_new_group_protocol(
    request: pytest.FixtureRequest, classes: Path, new_name: Callable[[], str]
) -> None:
    """K9: they share, take over, subscribe by a pattern; an empty group changes its protocol.
    Green on Apache Kafka 4.3 too."""
    address = os.environ.get("COMPAT_BOOTSTRAP")
    if address is None:
        make = request.getfixturevalue("node_factory")
        address = make(groups_consumer_heartbeat_interval_ms="200ms").bootstrap
    run(classes, "GroupScenario", address, new_name())


@pytest.mark.timeout(BUILD_SECONDS_MAX + RUN_SECONDS_MAX)
def test_java_share_consumers_and_their_administration(
    request: pytest.FixtureRequest, classes: Path, new_name: Callable[[], str]
) -> None:
    """K10, K13: accept, release, reject, renew; and what `kafka-share-groups.sh` asks: described,
    listed, moved, offsets and groups deleted."""
    address = os.environ.get("COMPAT_BOOTSTRAP")
    if address is None:
        make = request.getfixturevalue("node_factory")
        address = make(groups_share_heartbeat_interval_ms="200ms").bootstrap
    run(classes, "ShareScenario", address, new_name())


@pytest.mark.usefixtures("node_only")
@pytest.mark.timeout(BUILD_SECONDS_MAX + RUN_SECONDS_MAX)
def test_java_producers_send_records_that_are_due_later(
    bootstrap: str, classes: Path, new_name: Callable[[], str]
) -> None:
    """K11: by time and by delay, idempotent and in transactions; what cannot be is refused."""
    run(classes, "DueScenario", bootstrap, new_name())


@pytest.mark.usefixtures("node_only")
@pytest.mark.timeout(BUILD_SECONDS_MAX + RUN_SECONDS_MAX)
def test_the_example_of_due_messages_works_with_four_clients(bootstrap: str, classes: Path) -> None:
    """K11: `examples/due`: each program delays a message, and the reader shows all of them."""
    modules = {**os.environ, "NODE_PATH": str(kafkajs.PROJECT / "node_modules")}
    programs = {
        "python": [sys.executable, "-m", "examples.due.remind"],
        "java": ["java", "-cp", f"{classes}/*", "examples/due/Remind.java"],
    }
    if shutil.which("kcat"):
        programs["kcat"] = ["examples/due/remind.sh"]
    if shutil.which("npm"):
        kafkajs.install()
        programs["kafkajs"] = ["node", "examples/due/remind.js"]
    read = [sys.executable, "-m", "examples.due.read", "--bootstrap", bootstrap]
    with subprocess.Popen(
        [*read, "--count", str(len(programs))], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
        for name, words in programs.items():
            done = subprocess.run(
                [*words, f"by {name}", "100ms", bootstrap],
                cwd=ROOT,
                env=modules,
                capture_output=True,
                text=True,
                timeout=RUN_SECONDS_MAX,
                check=False,
            )
            assert done.returncode == 0, f"{name}: {done.stderr}"
        said = [reader.stdout.readline() for _ in programs]
    late = {line.partition(" (")[0]: line for line in said}
    assert sorted(late) == sorted(f"by {name}" for name in programs)
    assert not [line for line in said if "(-" in line], "one came early"


def run(classes: Path, scenario: str, *arguments: str) -> None:
    said = jvm.run(classes, scenario, *arguments, seconds_max=RUN_SECONDS_MAX)
    assert said.strip() == "done"
