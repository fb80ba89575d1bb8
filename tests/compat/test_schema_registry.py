"""A schema registry whose only storage is a topic: Apicurio Registry, asked as Confluent's is."""

import json
import os
import subprocess
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.peers import apicurio
from bench.peers.server import PeerMissing
from tests.compat import jvm
from tests.compat.drivers.base import wait_for
from tests.compat.server import Connect, Node

WAIT_S = 120.0


class Registry:
    """A registry; each life of it begins with nothing but its topics."""

    def __init__(self, bootstrap: str, program: Path, folder: Path, name: str) -> None:
        self._program = program
        self._folder = folder
        self._settings = {
            "apicurio.storage.kind": "kafkasql",
            "apicurio.kafkasql.bootstrap.servers": bootstrap,
            "apicurio.kafkasql.topic": name,
            "apicurio.kafkasql.snapshots.topic": f"{name}-snapshots",
            # As Confluent's `_schemas`; here as soon and as often as can be.
            "apicurio.kafkasql.topic.cleanup.policy": "compact",
            "apicurio.kafkasql.topic.min.cleanable.dirty.ratio": "0",
            "apicurio.kafkasql.topic.segment.ms": "500",
            "apicurio.kafkasql.topic.delete.retention.ms": "0",
            "apicurio.rest.deletion.artifact.enabled": "true",
            "apicurio.rest.deletion.artifact-version.enabled": "true",
        }
        self.topic = name
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers; it may still be reading its topic."""
        self._port = jvm.free_port()
        settings = {**self._settings, "quarkus.http.port": str(self._port)}
        java = ["java", "-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        java += [f"-D{name}={value}" for name, value in settings.items()]
        with (self._folder / "registry.log").open("a") as written:
            self._process = subprocess.Popen(
                [*java, "-jar", str(self._program)], stdout=written, stderr=written
            )
        wait_for("the registry", lambda: self.ask("/subjects") is not None, WAIT_S)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    def ask(self, path: str, body: object = None, method: str = "GET") -> Any:
        """What it answers; None if it does not, or says that there is no such thing."""
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{apicurio.API}{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method if body is None else "POST",
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(asked, timeout=20) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            assert error.code == 404, error.read()
            return None
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return None

    def register(self, subject: str, *fields: str) -> int:
        """A version of a schema; returns its id."""
        written = json.dumps(_schema(fields))
        return int(self.ask(f"/subjects/{subject}/versions", {"schema": written})["id"])

    def said(self) -> str:
        return (self._folder / "registry.log").read_text()[-4000:]


def _schema(fields: tuple[str, ...]) -> dict[str, object]:
    made = [{"name": name, "type": "string", "default": ""} for name in fields]
    return {"type": "record", "name": "order", "fields": made}


@pytest.fixture(scope="module")
def program() -> Path:
    """The registry as its makers ship it, from Maven Central."""
    try:
        return apicurio.program()
    except PeerMissing as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


@pytest.fixture
def registry(bootstrap: str, program: Path, tmp_path: Path) -> Iterator[Registry]:
    name = f"schemas-{uuid.uuid4().hex[:8]}"
    made = Registry(bootstrap, program, tmp_path, name)
    yield made
    made.kill()


@pytest.mark.timeout(jvm.BUILD_SECONDS_MAX + 4 * WAIT_S)
def test_schemas_survive_the_registry_and_the_node(
    request: pytest.FixtureRequest, registry: Registry, connect: Connect
) -> None:
    """K14, L17: versions of a schema and a subject that was deleted, in a compacted topic. The node
    is killed under the registry, which goes on; a registry without memory reads the same."""
    try:
        registry.start()
        settings = connect("confluent").config(registry.topic)
        assert settings["cleanup.policy"] == "compact"
        first = registry.register("orders-value", "a")
        second = registry.register("orders-value", "a", "b")
        registry.register("gone-value", "a", "b", "c")
        assert registry.ask("/subjects/gone-value", method="DELETE") == [1]
        assert second > first

        if not os.environ.get("COMPAT_BOOTSTRAP"):
            node: Node = request.getfixturevalue("node")
            node.kill()
            node.start()
        third = registry.register("orders-value", "a", "b", "d")
        registry.kill()
        registry.start()

        wait_for(
            "all versions", lambda: registry.ask("/subjects/orders-value/versions") == [1, 2, 3]
        )
        assert registry.ask("/subjects") == ["orders-value"]
        for known, fields in ((first, "a"), (second, "ab"), (third, "abd")):
            found = registry.ask(f"/schemas/ids/{known}")
            assert json.loads(found["schema"]) == _schema(tuple(fields))
        assert registry.register("orders-value", "a", "b") == second
    except TimeoutError as error:
        raise AssertionError(f"{error}; {registry.said()}") from error
