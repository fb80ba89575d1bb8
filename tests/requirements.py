"""Which requirement is proven where: read from the docstrings of the tests.

`python -m tests.requirements` prints the table; with `--write` it puts it into docs/guarantees.md,
between its two marks. A test fails when the table there is not up to date.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOC = ROOT / "docs" / "guarantees.md"
BEGIN = "<!-- requirements: begin -->\n"
END = "<!-- requirements: end -->\n"

_ID = r"(?:[LKBOSTUR]\d{1,2}|F\d{1,2}[a-c]?)"
_IDS = re.compile(rf"^({_ID}(?:, {_ID})*): ")
#: A cell names so many tests; the rest are counted.
_SHOWN_MAX = 6


def proven() -> dict[str, list[str]]:
    """The tests that name each requirement."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if "node_modules" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            match = _IDS.match(ast.get_docstring(node) or "")
            if match and node.name.startswith("test_"):
                name = f"{path.relative_to(ROOT / 'tests')}::{node.name}"
                for requirement in match.group(1).split(", "):
                    found.setdefault(requirement, []).append(name)
    return found


def table() -> str:
    """The table in Markdown, sorted by requirement."""
    rows = ["| requirement | tests |", "|---|---|"]
    found = proven()
    for requirement in sorted(found, key=_order):
        names = found[requirement]
        shown = "<br>".join(f"`{name}`" for name in names[:_SHOWN_MAX])
        more = f"<br>and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
        link = f"[{requirement}](requirements.md#{requirement})"
        rows.append(f"| {link} | {shown}{more} |")
    return "\n".join(rows) + "\n"


def _order(requirement: str) -> tuple[str, int, str]:
    number = re.match(r"\d+", requirement[1:])
    assert number is not None
    return requirement[0], int(number.group()), requirement


def main() -> None:
    if "--write" not in sys.argv:
        print(table(), end="")
        return
    text = DOC.read_text()
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    DOC.write_text(text[:start] + table() + text[end:])


if __name__ == "__main__":
    main()
