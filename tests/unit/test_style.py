"""The house style, where a program can tell."""

import ast
import re
import subprocess
from pathlib import Path

import pytest
from tests import requirements

ROOT = Path(__file__).parent.parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))

#: A cap on lines is met by squeezing; statements are what a reader has to follow.
FUNCTION_STATEMENTS_MAX = 40
#: A run of lines without a blank one is a wall.
WALL_LINES_MAX = 25
MODULE_LINES_MAX = 500

#: Which rooms a room may know. `node` composes; `cli` and `console` are known to nobody.
ARROWS = {
    "coordination": {"wire"},
    "storage": {"coordination", "wire"},
    "log": {"coordination", "storage", "wire"},
    "wire": set(),
    "access": {"coordination", "wire"},
    "kafka": {"access", "wire", "log"},
    "settings": set(),
    "timeline": {"access", "coordination", "settings", "wire"},
    "backup": {"coordination", "storage", "timeline"},
    "node": {
        "access",
        "backup",
        "coordination",
        "storage",
        "log",
        "wire",
        "kafka",
        "settings",
        "timeline",
    },
    "outbox": {"kafka", "settings", "timeline"},
    "election": {"coordination"},
    "stream": {"coordination", "election"},
    "registry": set(),
    "spark": {"kafka", "registry", "wire"},
    "teams": {"coordination", "election", "kafka", "settings", "spark", "stream", "timeline"},
    "admin": {
        "access",
        "coordination",
        "election",
        "kafka",
        "log",
        "outbox",
        "settings",
        "storage",
        "timeline",
    },
    "console": {
        "admin",
        "backup",
        "coordination",
        "node",
        "outbox",
        "registry",
        "settings",
        "timeline",
    },
    "cli": {
        "admin",
        "backup",
        "access",
        "node",
        "console",
        "kafka",
        "coordination",
        "storage",
        "outbox",
        "spark",
        "teams",
        "settings",
        "election",
        "stream",
        "timeline",
        "wire",
    },
}
#: What every room may know.
GROUND = {
    "accepting",
    "addresses",
    "background",
    "blocking",
    "buffers",
    "clock",
    "compression",
    "daemon_pool",
    "dead_letter",
    "durable_files",
    "errors",
    "exposition",
    "foreign",
    "given_functions",
    "logging",
    "prompt_future",
    "record_batch",
    "record_check",
    "supervision",
    "tls_files",
    "tracing",
    "web",
}


def _tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False, text=True
    )
    names = [name for name in listed.stdout.split("\0") if name]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_modules_and_functions_are_short_and_explained(path: Path) -> None:
    """Each module says what it is; none is too long, and no function is."""
    text = path.read_text()
    tree = ast.parse(text)
    assert not text.strip() or ast.get_docstring(tree), "a module without a docstring"
    assert text.count("\n") <= MODULE_LINES_MAX
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            statements = sum(isinstance(child, ast.stmt) for child in ast.walk(node)) - 1
            assert statements <= FUNCTION_STATEMENTS_MAX, node.name
            assert _longest_wall(node, text.split("\n")) <= WALL_LINES_MAX, node.name


def _longest_wall(function: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> int:
    """Most lines in a row without a blank one, the signature and docstring left out."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    longest = here = 0
    for line in lines[body[0].lineno - 1 : function.end_lineno] if body else ():
        here = here + 1 if line.strip() else 0
        longest = max(longest, here)
    return longest


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_arrows_between_rooms_go_one_way(path: Path) -> None:
    """The house of docs/architecture.md."""
    _, *parts = path.relative_to(ROOT / "src").parts
    if len(parts) == 1:
        return
    room = parts[0]
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.startswith("dovetail."):
                other = name.split(".")[1]
                assert other in {room} | ARROWS[room] | GROUND, f"{room} knows {other}"


def test_no_file_has_a_name_that_says_nothing() -> None:
    """One noun, one module."""
    for path in _tracked():
        assert path.stem not in {"utils", "util", "common", "helpers", "misc"}, path


def test_nothing_is_left_undone_in_the_text() -> None:
    """What is missing is in the issues, not in the code; no path of a machine is in the tree."""
    undone = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
    machine = re.compile(r"(^|[\s\"'(])/(home|root|work)/")
    for path in _tracked():
        if path.suffix in {".py", ".md", ".toml", ".txt", ""} and path.name != "LICENSE":
            text = path.read_text(errors="ignore")
            assert not undone.search(text), path
            assert not machine.search(text), path


def test_the_table_of_requirements_is_up_to_date() -> None:
    """docs/guarantees.md names the tests; `python -m tests.requirements --write` brings it up."""
    assert requirements.BEGIN + requirements.table() + requirements.END in (
        requirements.DOC.read_text()
    )


def test_the_documents_name_files_that_exist() -> None:
    """A path in backticks in the documents is a path in the tree."""
    path_like = re.compile(r"`((?:src|tests|bench|docs|examples|scripts)/[\w./-]+)`")
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for document in documents:
        for name in path_like.findall(document.read_text()):
            assert (ROOT / name).exists(), f"{document.name} names {name}"
