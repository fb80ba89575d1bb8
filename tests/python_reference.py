"""docs/reference/python.md, from the docstrings of what packages export.

`python -m tests.python_reference --write` writes it; a test fails when it is not up to date. All is
read from the source, so that every version of Python writes the same.
"""

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOC = Path(__file__).parent.parent / "docs" / "reference" / "python.md"

#: What users import, and the page that explains it. A name is described where it comes first.
MODULES = {
    "dovetail.timeline": "[Timelines](../timeline.md)",
    "dovetail.timeline.client.fake": "[Test your handlers](../howto/test-your-handlers.md)",
    "dovetail.outbox": "[Outbox](../outbox.md)",
    "dovetail.stream": "[Shared streams](../stream.md)",
    "dovetail.teams": "[Teams](../teams.md)",
    "dovetail.spark": "[Spark](../spark.md)",
}
#: Of a module without a list of its own.
NAMES = {"dovetail.timeline.client.fake": ["fake_dovetail", "FakeDovetail"]}

_HEAD = """# The Python API

<!-- Written by `python -m tests.python_reference --write`; change docstrings, not this page. -->

What packages export, as their docstrings say it. `dovetail.connect` and `dovetail.connect_blocking`
are those of `dovetail.timeline`. Everything that is raised on purpose is a `DovetailError` of
`dovetail.errors`; its attribute `retriable` says whether the same call can succeed later.

A `Duration` is a number of seconds, a text such as `"90s"` or `"1h30m"`, or a `timedelta`. A
`Moment` is a `datetime` (without a zone it is in that of this machine), or seconds since the epoch.
A `Body` is bytes, text (it travels as UTF-8), or a dict or a list (as JSON).

```text
{errors}
```
"""


def page() -> str:
    """The whole page in Markdown."""
    errors = inspect.getdoc(importlib.import_module("dovetail.errors")) or ""
    tree = errors.partition("\n\n")[2].partition("\n\n")[0]
    lines = [_HEAD.format(errors=textwrap.dedent(tree))]
    described: set[int] = set()
    for name, explained in MODULES.items():
        lines += [f"## {name}", "", f"Explained in {explained}.", ""]
        for title, found in exported(name):
            if id(found) not in described:
                described.add(id(found))
                lines += _described(title, found)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def exported(name: str) -> list[tuple[str, Any]]:
    """What a module exports."""
    module = importlib.import_module(name)
    return [(each, getattr(module, each)) for each in NAMES.get(name) or module.__all__]


def _described(name: str, found: Any) -> list[str]:
    if inspect.isclass(found):
        return _class(name, found)
    if inspect.isfunction(found):
        original = inspect.unwrap(found)
        return [f"### {name}", "", *_code(_signature(_parsed(original), name)), *_text(found)]
    return [f"### {name}", "", f"`{found!r}`" if isinstance(found, str | int) else "A type.", ""]


def _class(name: str, found: type) -> list[str]:
    tree = _parsed(found)
    assert isinstance(tree, ast.ClassDef)
    bases = [ast.unparse(base) for base in tree.bases]
    lines = [f"### {name}", "", *_code(f"class {name}({', '.join(bases)})" if bases else name)]
    lines += _text(found)

    fields = list(_fields(found, tree))
    if fields:
        lines += ["| field | |", "|---|---|", *fields, ""]
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        said = inspect.cleandoc(ast.get_docstring(node) or "")
        own = node.name == "__init__" and len(node.args.args + node.args.kwonlyargs) > 1
        if (own or not node.name.startswith("_")) and (said or own) and not _is_private(node):
            lines += _code(_signature(node, name if own else f"{name}.{node.name}"))
            lines += [*_escaped(said), ""]
    return lines


def _is_private(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """An `__init__` that only the package itself calls takes what nobody else has."""
    taken = {word for arg in node.args.args for word in (arg.arg,)}
    return node.name == "__init__" and bool(taken & {"link", "make_link", "service", "store"})


def _fields(found: type, tree: ast.ClassDef) -> Iterator[str]:
    """Annotated names, with the comment above each."""
    source = textwrap.dedent(inspect.getsource(found)).splitlines()
    for node in tree.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if node.target.id.startswith("_"):
            continue
        said: list[str] = []
        at = node.lineno - 2
        while at >= 0 and source[at].strip().startswith("#"):
            said.insert(0, source[at].strip().lstrip("#: "))
            at -= 1
        default = "" if node.value is None else f" = {ast.unparse(node.value)}"
        shown = f"{node.target.id}: {ast.unparse(node.annotation)}{default}".replace("|", "\\|")
        yield f"| `{shown}` | {' '.join(said).replace('|', chr(92) + '|')} |"


def _parsed(found: Any) -> ast.stmt:
    return ast.parse(textwrap.dedent(inspect.getsource(found))).body[0]


def _signature(node: ast.stmt, name: str) -> str:
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    arguments = ast.unparse(node.args)
    arguments = re.sub(r"^(self|cls)(, |$)", "", arguments)
    returns = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    decorators = {ast.unparse(each) for each in node.decorator_list}
    if "property" in decorators:
        return f"{name}{returns.replace(' -> ', ': ')}"
    managed = "async with " if "asynccontextmanager" in decorators else ""
    awaited = "await " if isinstance(node, ast.AsyncFunctionDef) and not managed else ""
    return f"{managed}{awaited}{name}({arguments}){returns}"


def _code(text: str) -> list[str]:
    return ["```text", *textwrap.wrap(text, 100, subsequent_indent="    "), "```", ""]


def _text(found: Any) -> list[str]:
    return [*_escaped(inspect.getdoc(found) or ""), ""]


def _escaped(text: str) -> Iterator[str]:
    """A docstring as Markdown: what is indented in it is code."""
    inside = False
    for line in text.splitlines():
        code = line.startswith("    ") or (inside and not line)
        if code != inside:
            yield "```" if inside else "\n```text"
            inside = code
        yield line.removeprefix("    ") if inside else line
    if inside:
        yield "```"


if __name__ == "__main__":
    if "--write" in sys.argv:
        DOC.write_text(page())
    else:
        sys.stdout.write(page())
