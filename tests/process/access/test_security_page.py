"""docs/security.md as somebody follows it who has nothing else: every door of a guarded node."""

import contextlib
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from tests import doc_pages
from tests.conftest import RunningNode, running_node
from typer.testing import CliRunner

from dovetail.cli.app import app

PAGE = doc_pages.DOCS / "security.md"
#: What the page leaves out, of the admin and of the shop.
PASSWORD = "correct horse battery staple"

#: The sections that are followed, in this order, on one node.
SECTIONS = ("TLS", "Login", "Access rules")

Dovetail = Callable[..., str]


def section(title: str) -> str:
    text = PAGE.read_text()
    return re.split(r"^## ", text.partition(f"\n## {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[
        0
    ]


def fenced(title: str, language: str) -> list[str]:
    """The blocks of a section in a language; what has none is for a shell."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", section(title), re.MULTILINE | re.DOTALL)
    return [text for kind, text in found if kind == language]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def node(folder: Path) -> Iterator[RunningNode]:
    """A node with the settings of the page, on this machine and on free ports."""
    for line in fenced("TLS", "console")[0].splitlines():
        if line.startswith("$ dovetail "):
            with contextlib.chdir(folder):
                done = CliRunner().invoke(app, line.split()[2:])
            assert done.exit_code == 0, done.output
    (folder / "admin-password").write_text(f"{PASSWORD}\n")

    settings: dict[str, str] = {}
    for title in SECTIONS:
        for name, values in tomllib.loads(fenced(title, "toml")[0]).items():
            settings |= {f"{name}_{key}": str(value) for key, value in values.items()}
    # The name of the page leads nowhere here; the certificate is valid for this machine too.
    settings |= {"kafka_host": "127.0.0.1", "kafka_advertised_host": ""}
    with running_node(folder / "data", settings) as made:
        yield made


@pytest.fixture(scope="module")
def dovetail(node: RunningNode, folder: Path) -> Dovetail:
    """The command line with the variables that the page exports."""
    [exports] = fenced("Login", "")
    given = dict(re.findall(r"(DOVETAIL_\w+)=(\S+)", exports))
    given = {name: PASSWORD if value == "..." else value for name, value in given.items()}
    given |= {
        "DOVETAIL_CLIENT_BOOTSTRAP": node.bootstrap,
        "DOVETAIL_HTTP_PORT": node.http_url.rpartition(":")[2],
    }

    def run(*words: str) -> str:
        with contextlib.chdir(folder):
            done = CliRunner().invoke(app, words, env=given, input=f"{PASSWORD}\n")
        assert done.exit_code == 0, f"{words}\n{done.output}"
        return done.stdout

    return run


def test_the_commands_of_the_page_work(
    node: RunningNode, dovetail: Dovetail, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F83: users, rules and a client, as printed; then console, top and doctor with data there."""
    for title in ("Login", "Access rules"):
        [block] = fenced(title, "")
        for line in block.splitlines():
            if line.startswith("dovetail "):
                # A shell would take the quotes away.
                dovetail(*line.partition("#")[0].replace("'", "").split()[1:])

    monkeypatch.chdir(folder)
    [client] = fenced("Login", "python")
    client = client.replace("queue.example.org:9092", node.bootstrap).replace(
        '"..."', repr(PASSWORD)
    )
    exec(compile(client, str(PAGE), "exec"), {})
    assert dovetail("consume", "orders").strip() == "first"
    dovetail("timeline", "create", "reminders")
    dovetail("timeline", "schedule", "reminders", "later", "--in", "1h")

    with httpx.Client(base_url=node.http_url, timeout=30) as console:
        for path in ("overview", "topics", "topics/orders", "groups", "timelines", "pipelines"):
            answer = console.get(f"/v1/{path}")
            assert answer.status_code == 200, f"{path}: {answer.text}"
        totals = console.get("/v1/overview").json()["totals"]
        unknown = {name for name, value in totals.items() if value is None}
        assert unknown <= {"records_per_s"}, unknown

    shown = json.loads(dovetail("top", "--once", "--json", "--interval", "100ms"))
    assert shown["troubles"] == {}
    checks = json.loads(dovetail("doctor", "--json", "--sample", "100ms"))["checks"]
    assert [check for check in checks if check["state"] == "failed"] == []
