"""The console's own files, where reading them is enough."""

import re
import shlex
from pathlib import Path

import pytest
from tests.cli_reference import refusal, whole_tree

import dovetail.console
from dovetail.console.web import pages

STATIC = Path(dovetail.console.__file__).parent / "static"
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())
MODULES = [path for path in FILES if path.suffix == ".js"]
NAMES = [str(path.relative_to(STATIC)) for path in MODULES]

LINES_MAX = 500
COLUMNS_MAX = 100
#: The contrast that WCAG asks of text (AA).
CONTRAST_MIN = 4.5

#: Text colours and the grounds they stand on.
PAIRS = [
    *(
        (text, ground)
        for text in ("text", "text-soft", "text-faint", "accent")
        for ground in ("ground", "surface", "surface-raised", "surface-sunken")
    ),
    ("accent-strong", "accent-ground"),
    ("on-accent", "accent"),
    ("on-bad", "bad"),
    *((tone, f"{tone}-ground") for tone in ("good", "warn", "bad")),
    *((tone, "surface") for tone in ("good", "warn", "bad")),
    ("text", "bad-ground"),
    ("text", "warn-ground"),
]


def test_the_pages_are_served_from_where_they_are() -> None:
    """U5: a module that moves takes its files along."""
    assert pages.FOLDER == STATIC
    assert (pages.FOLDER / "index.html").is_file()


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_modules_set_text_only_as_text(path: Path) -> None:
    """R3, U5: no way from a message's bytes to markup or code; no inline style attribute."""
    text = path.read_text()
    parsed = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|Function\("
    assert not re.search(parsed, text)
    assert not re.search(r"setAttribute\(\s*[\"']style", text)
    assert text.count("\n") <= LINES_MAX
    assert text.startswith("/*"), "a module says what it is"


def filled_in(path: Path) -> str:
    """A module with something in the places of its templates, and lines of one text joined."""
    return re.sub(r"` \+\s*`", "", re.sub(r"\$\{.*?\}", "x", path.read_text()))


def test_commands_that_pages_show_exist() -> None:
    """U5, U7: with their options; what is copied from a page works in a terminal."""
    shown = [
        command
        for path in MODULES
        for text in re.findall(r"[`\"]([^`\"\n]*\bdovetail [a-z][^`\"\n]*)[`\"]", filled_in(path))
        for command in re.findall(r"(?:^|\| |&& |: )dovetail ([a-z][^|&]*)", text)
    ]
    assert len(shown) >= 12
    root = whole_tree()
    for command in shown:
        assert refusal(root, shlex.split(command)) is None, command


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(STATIC)) for path in FILES])
def test_lines_fit(path: Path) -> None:
    """As everywhere in the project."""
    if path.suffix in {".js", ".css", ".html"}:
        assert max(len(line) for line in path.read_text().splitlines()) <= COLUMNS_MAX


def test_no_file_names_an_outside_address() -> None:
    """U5: everything comes from the node itself."""
    for path in FILES:
        found = set(re.findall(r"https?://[\w./]+", path.read_text()))
        assert found <= {"http://www.w3.org/2000/svg"}, path


def test_every_import_exists() -> None:
    """A page that cannot load one of its modules shows nothing at all."""
    for path in MODULES:
        for name in re.findall(r"(?:from|import\()\s*\"(\.[^\"]+)\"", path.read_text()):
            assert (path.parent / name).resolve().is_file(), f"{path.name} imports {name}"


def test_every_import_is_used() -> None:
    """No dead names."""
    for path in MODULES:
        text = path.read_text()
        for names in re.findall(r"^import \{([^}]*)\} from", text, re.MULTILINE):
            for name in names.split(","):
                own = name.strip().split(" as ")[-1]
                assert len(re.findall(rf"\b{own}\b", text)) > 1, f"{path.name} imports {own}"


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_can_be_read(text: str, ground: str) -> None:
    """U5: in both themes every text stands out from its ground."""
    tokens = (STATIC / "style" / "tokens.css").read_text()
    found = dict(re.findall(r"--([\w-]+): light-dark\((#\w{6}, #\w{6})\)", tokens))
    for one, other in zip(found[text].split(", "), found[ground].split(", "), strict=True):
        high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= CONTRAST_MIN, (one, other)
