"""The house: where things live, that there is one of each, and that its maps are true (U9)."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import background_work, requirements

ROOT = Path(__file__).parent.parent.parent
HOUSE = ROOT / "src" / "dovetail"
SOURCES = sorted(HOUSE.rglob("*.py"))
FOLDERS = sorted({path.parent for path in SOURCES} - {HOUSE})
ROOMS = sorted(path.name for path in HOUSE.iterdir() if (path / "__init__.py").exists())

#: What starts background work that is started again when it fails.
LASTS = {"keep", "keep_task", "keep_thread", "Alarm"}

#: A folder with more is more than one thing.
MODULES_MAX = 25

#: What exists once: the words that betray a second one, and its home.
ONE_OF_EACH = {
    "start of a background task or thread": (
        r"\bcreate_task\(|\bensure_future\(|\bThread\(",
        # Two make a task for every request or message, which their owner keeps and sees end.
        {"background.py", "wire/replies.py", "timeline/client/consumer.py"},
    ),
    # A bare timer's failure is heard of by the loop alone.
    "timer": (r"\bcall_later\(|\bcall_at\(", {"background.py"}),
    # A handler that takes a lock may wait for the very code that it interrupted.
    "handler of signals": (r"\bsignal\.signal\((?!.*SIG_(DFL|IGN))", {"background.py"}),
    "parser of addresses": (r"\.rpartition\(\":\"\)|\.rsplit\(\":\"", {"addresses.py"}),
    "logger": (r"logging\.getLogger|^import logging", {"logging.py"}),
    "membership": (r"\"/nodes/\"", {"coordination/membership.py"}),
    # A candidate's lease is the election's own: it ends with the campaign, not with the process.
    "lease of a process": (
        r"\bLeaseKeeper\(",
        {"coordination/membership.py", "election/campaign.py"},
    ),
    "probe of a peer": (r"\bhello\(\)", {"wire/calls.py", "wire/probe.py"}),
    "codec of private calls": (r"^class Failure\(", {"wire/calls.py"}),
    "dispatcher of timelines": (r"frames\.\w+: Route\(", {"timeline/dispatch.py"}),
    "table of Kafka's error codes": (r"^class ErrorCode\b", {"kafka/codec/error_codes.py"}),
    "Kafka client of our own": (r"\baiokafka\b", set()),
    # librdkafka's frees memory twice when the broker is late, and takes the process with it.
    "way to list offsets": (r"\bOffsetSpec\b|\.list_offsets\(", set()),
    "format of record batches": (r"qiibI", {"record_batch.py"}),
    "home of the codecs of record batches": (r"^import cramjam", {"compression.py"}),
    "hash of keys": (r"0x5BD1E995", {"kafka/client/partitioner.py"}),
}

#: Words of our own for which the field has a word (docs/glossary.md).
RETIRED = {
    r"\bcarriers?\b": "broker",
    r"\bcan not\b": "cannot",
    r"\bdoorm[ae]n\b": "authenticator",
    r"\b(front ?)?doors?\b": "listener",
    r"\bannounce[ds]?\b": "registered",
    r"\b(Holdings?|Standings?)\b(?! (a|the|by|for))": "ownership, presence",
    r"\bdeals?\b": "assignment",
    r"\bwork_ids?\b": "job id",
    r"\bWorkFailed\b": "JobFailed",
}

#: Where docs/guarantees.md says what becomes of a room's data under faults; None: it keeps none.
PROMISES = {
    "access": None,
    "admin": None,
    "backup": "Backup and restore",
    "cli": None,
    "console": None,
    "coordination": "The log in a cluster",
    "election": "The shared stream",
    "kafka": None,
    "log": "The log",
    "node": None,
    "outbox": "The outbox",
    "registry": None,
    "settings": None,
    "spark": "Spark tables",
    "storage": "The log",
    "stream": "The shared stream",
    "teams": "Teams",
    "timeline": "Timelines",
    "wire": None,
}


def _name(path: Path) -> str:
    return str(path.relative_to(HOUSE))


@pytest.mark.parametrize("folder", FOLDERS, ids=_name)
def test_a_folder_is_small_and_lists_its_modules(folder: Path) -> None:
    """U9: a reader finds every module of a room in the docstring of its folder."""
    modules = sorted(path.name for path in folder.glob("*.py") if path.name != "__init__.py")
    assert len(modules) <= MODULES_MAX
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    packages = [path.name + "/" for path in folder.iterdir() if (path / "__init__.py").exists()]
    missing = [
        name for name in [*modules, *packages] if not re.search(rf"\b{re.escape(name)}", text)
    ]
    assert not missing, f"{_name(folder)}/__init__.py does not name {missing}"
    listed = set(re.findall(r"^    ([\w/]+\.py)\b", text, re.MULTILINE))
    assert {name for name in listed if not (folder / name).exists()} == set()


def test_the_architecture_names_every_room() -> None:
    """U9: every room is in docs/architecture.md, and every folder of a room below it."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    assert [room for room in ROOMS if f"\n  {room}/" not in text] == []
    tree = re.findall(r"^  (\w+)/.*\n((?:    \w+/.*\n)*)", text, re.MULTILINE)
    listed = {room: set(re.findall(r"^    (\w+)/", below, re.MULTILINE)) for room, below in tree}
    for room in ROOMS:
        folders = {path.parent.name for path in (HOUSE / room).glob("*/__init__.py")}
        assert listed[room] == folders, f"architecture.md, below {room}"
    shared = {path.name for path in HOUSE.glob("[!_]*.py")}
    assert {name for name in shared if f"`{name}`" not in text} == set()


def test_the_walks_name_functions_that_exist() -> None:
    """U9: the ways through the house name files and functions; each is there."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`([\w/]+\.py):([\w.]+)`", text)
    assert len(named) >= 50
    for file, name in named:
        path = HOUSE / file
        assert path.exists(), f"architecture.md names {file}"
        assert name in set(_definitions(path)), f"architecture.md names {file}:{name}"


def _definitions(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{inner.name}"


@pytest.mark.parametrize("what", ONE_OF_EACH)
def test_there_is_one_of_each(what: str) -> None:
    """R5, U9: what exists once has one home, and no second one grows beside it."""
    pattern, homes = ONE_OF_EACH[what]
    found = {
        _name(path)
        for path in SOURCES
        if re.search(pattern, path.read_text(), re.MULTILINE) is not None
    }
    assert found - homes == set(), f"a second {what}"
    assert homes <= found, f"no {what} in its home"


def test_no_retired_word_is_left() -> None:
    """U8: the field's own words; docs/glossary.md defines the few of ours."""
    texts = [
        path
        for folder in ("src", "docs", "examples", "deploy", "bench")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".md", ".js", ".html", ".toml", ".yml", ".yaml", ".tpl"}
    ]
    found = [
        f"{path.relative_to(ROOT)}: {match.group(0)!r}; say {better!r}"
        for path in [ROOT / "README.md", ROOT / "CHANGELOG.md", *texts]
        for word, better in RETIRED.items()
        for match in [re.search(word, path.read_text(), re.IGNORECASE)]
        if match is not None and path.name != "glossary.md"
    ]
    assert found == []


def test_every_promise_names_its_tests() -> None:
    """U8: each row of docs/guarantees.md names at least one test, and all that it names are there;
    each room that keeps data has a section."""
    text = requirements.DOC.read_text().partition("## Which requirement is proven where")[0]
    for named in re.findall(r"`(tests/[^`]*)`", text):
        file, _, test = named.partition("::")
        path = ROOT / file
        assert path.is_file() or [*path.glob("test_*.py")], f"guarantees.md names {named}"
        assert not test or test in set(_definitions(path)), f"guarantees.md names {named}"

    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    assert len(rows) >= 90
    assert [row for row in rows if len(row) != 3] == [], "fault, promise, test"
    assert [r for r in rows if "`tests/" not in r[2] and r[2] not in (" test ", "---")] == []

    assert PROMISES.keys() == {*ROOMS}, "a new room: say where its promises are"
    sections = {line.lstrip("# ") for line in text.splitlines() if line.startswith("##")}
    assert {one for one in PROMISES.values() if one is not None} <= sections


def test_every_id_that_a_test_names_has_its_text() -> None:
    """U8: docs/requirements.md has the text of every requirement and finding."""
    text = (ROOT / "docs" / "requirements.md").read_text()
    assert [one for one in requirements.proven() if f'id="{one}"' not in text] == []


def test_all_background_work_is_in_the_tables() -> None:
    """R5: what is started has a name from the source, and a line on what a failure of it means."""
    started = list(background_work.starts())
    assert [each for each in started if each.name is None] == [], "a name that is no literal"
    names = {each.name for each in started}
    known = {*background_work.LASTING, *background_work.ENDING}
    assert names - known == set(), "work that no test plants a failure in: tests/background_work.py"
    assert known - names == set(), "work that does not exist any more"
    lasts = {each.name for each in started if each.function in LASTS}
    assert lasts <= background_work.LASTING.keys(), "lasting work, and no failure is planted in it"
    assert background_work.ENDS_WITH.keys() <= background_work.LASTING.keys()
