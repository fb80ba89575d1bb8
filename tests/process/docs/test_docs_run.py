"""What the documents show is what happens: their blocks, run on a real node."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests import doc_pages
from typer.testing import CliRunner

from dovetail.cli.app import app

COMMAND_S_MAX = 60.0
#: Where every page says the node is.
ADDRESS = "127.0.0.1:9092"

PAGES = [
    path
    for path in doc_pages.pages()
    if any(
        block.language in ("python", "console") and block.why_not is None
        for block in doc_pages.blocks(path)
    )
]


@pytest.fixture(scope="module")
def program_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the path, with `dovetail` in it."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "dovetail"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dovetail "$@"\n')
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(doc_pages.ROOT)))
def test_a_page_does_what_it_says(
    page: Path, node, program_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U4: every example of the page is run in order, in an empty folder; its output is as shown."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("DOVETAIL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("DOVETAIL_CLIENT_BOOTSTRAP", node.bootstrap)
    monkeypatch.setenv("DOVETAIL_HTTP_PORT", node.http_url.rpartition(":")[2])
    monkeypatch.setenv("DOVETAIL_NODE_DATA_DIR", str(node.data_dir))
    monkeypatch.setenv("DOVETAIL_KAFKA_PORT", node.bootstrap.rpartition(":")[2])
    monkeypatch.setenv("PATH", f"{program_folder}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(doc_pages.ROOT))
    names: dict[str, object] = {"__name__": "page"}
    for block in doc_pages.blocks(page):
        if block.why_not is not None:
            continue
        if block.language == "python":
            source = block.text.replace(ADDRESS, node.bootstrap)
            # Lines are counted as they stand in the page.
            code = compile("\n" * block.line + source, str(page), "exec")
            exec(code, names)
        elif block.language == "console":
            for command in doc_pages.commands(block):
                run(block, command, node.bootstrap)


def run(block: doc_pages.Block, command: doc_pages.Command, bootstrap: str) -> None:
    where = f"{block.page}:{block.line}: {command.line}"
    line = command.line.replace(ADDRESS, bootstrap)
    code, output = in_shell(line) if set(line) & set("|<>;&$") else in_process(line)
    assert code == 0, f"{where}\n{output}"
    for expected in command.expected:
        assert expected.strip() in output, f"{where}\n{output}"


def in_shell(line: str) -> tuple[int, str]:
    done = subprocess.run(
        ["bash", "-c", line],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_S_MAX,
        check=False,
    )
    return done.returncode, done.stdout


def in_process(line: str) -> tuple[int, str]:
    """A plain call of the program, without the second that a process takes to begin."""
    program, *words = shlex.split(line)
    assert program == "dovetail", line
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    return done.exit_code, done.output
