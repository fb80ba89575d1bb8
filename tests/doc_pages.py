"""The documents as tests see them: pages, their headings, links and fenced blocks.

A block of `python` or `console` is run, page by page and in order, on a real node. One that cannot
be is preceded by `<!-- not run: why -->`; what is Python in it is still compiled, and what it
imports of ours must be there. In a `console` block `$ ` begins a command; the lines below it are
what it prints, somewhere, `...` standing for anything.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

_FENCE = re.compile(
    r"(?:<!-- not run: (?P<why>[^>]+) -->\s*\n)?^(?P<indent> *)```(?P<language>\w*)[^\n]*\n"
    r"(?P<text>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_ANCHOR = re.compile(r'<a id="([\w-]+)"></a>')


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block; `why_not` says why it is not run."""

    page: str
    line: int
    language: str
    text: str
    why_not: str | None


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a console block, and what it is to print."""

    line: str
    expected: tuple[str, ...]


def pages() -> list[Path]:
    """README and everything below docs."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def blocks(path: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    text = path.read_text()
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        why = match["why"]
        page = str(path.relative_to(ROOT))
        yield Block(page, line, match["language"], match["text"], why.strip() if why else None)


def prose(path: Path) -> str:
    """The page without its blocks and its code in backticks."""
    return re.sub(r"`[^`\n]+`", "`code`", _FENCE.sub("", path.read_text()))


def links(path: Path) -> list[str]:
    """Where the page leads to."""
    return _LINK.findall(prose(path))


def images(path: Path) -> list[tuple[str, str]]:
    """Alternative text and address of every picture."""
    return _IMAGE.findall(prose(path))


def anchors(path: Path) -> set[str]:
    """The names under which headings of the page are found, and its own anchors."""
    text = _FENCE.sub("", path.read_text())
    found = set(_ANCHOR.findall(text))
    for heading in _HEADING.findall(text):
        plain = re.sub(r"[^\w\s-]", "", heading.replace("`", "").lower()).strip()
        found.add(re.sub(r"[\s]+", "-", plain))
    return found


def commands(block: Block) -> list[Command]:
    """The commands of a console block."""
    found: list[Command] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], ()))
        elif found and line.strip() and line.strip() != "...":
            last = found.pop()
            found.append(Command(last.line, (*last.expected, line)))
        elif not found:
            raise AssertionError(f"{block.page}:{block.line}: output before any command")
    return found
