"""The documents as a whole: links, pictures, blocks, the generated page, the site."""

import ast
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import takewhile
from pathlib import Path

import pytest
import yaml
from tests import cli_reference, doc_pages, kafka_reference, python_reference

PAGES = doc_pages.pages()
IDS = [str(path.relative_to(doc_pages.ROOT)) for path in PAGES]
PICTURES = sorted((doc_pages.DOCS / "pictures").glob("*.svg"))


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_no_link_is_dead(path: Path) -> None:
    """U4: every page, heading and picture that a page leads to is there."""
    for target in [*doc_pages.links(path), *(address for _, address in doc_pages.images(path))]:
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        found = (path.parent / name).resolve() if name else path
        assert found.exists(), f"{path.name} leads to {target}"
        if anchor:
            assert anchor in doc_pages.anchors(found), f"{path.name} leads to {target}"


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_pictures_have_a_text(path: Path) -> None:
    """U4: who does not see a picture is told what it shows."""
    assert all(text.strip() for text, _ in doc_pages.images(path))


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_pictures_are_whole_and_load_nothing(path: Path) -> None:
    """U4: well-formed, with a title, for light and dark, and nothing from another address."""
    root = ET.parse(path).getroot()
    assert root.find("{http://www.w3.org/2000/svg}title") is not None
    text = path.read_text()
    assert "prefers-color-scheme: dark" in text
    assert re.findall(r"https?://[^\"\s]+", text) == ["http://www.w3.org/2000/svg"]
    assert "<script" not in text


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_python_in_documents_is_python(path: Path) -> None:
    """U4: blocks that are not run are compiled at least, and what they import of ours is there."""
    for block in doc_pages.blocks(path):
        if block.language != "python":
            continue
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
        where = f"{block.page}:{block.line}"
        tree = compile(block.text, where, "exec", flags)
        assert isinstance(tree, ast.Module)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dovetail"):
                module = importlib.import_module(node.module or "")
                for name in node.names:
                    assert hasattr(module, name.name), f"{where}: no {node.module}.{name.name}"


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_a_block_that_is_not_run_says_why(path: Path) -> None:
    """U4: only with a reason, and where a test is named, it is there."""
    for block in doc_pages.blocks(path):
        if block.why_not is None:
            continue
        assert len(block.why_not) > 20, f"{block.page}:{block.line}"
        for name in re.findall(r"(?:tests|docs|examples)/[\w./-]+\w", block.why_not):
            assert (doc_pages.ROOT / name).exists(), f"{block.page}:{block.line} names {name}"


def test_figures_of_the_comparison_are_those_that_were_printed() -> None:
    """U4: a figure beside others' stands in the page with the whole run, so that it can be checked.

    When a benchmark was run anew and its page changed, change docs/comparison.md too.
    """
    figures = re.findall(r"([\d,]+\d)/s", (doc_pages.DOCS / "comparison.md").read_text())
    printed = "".join(
        (doc_pages.DOCS / name).read_text() for name in ("benchmarks.md", "outbox.md")
    )
    assert figures
    assert [figure for figure in figures if figure not in printed] == []


def test_the_reference_of_commands_is_up_to_date() -> None:
    """U4: `python -m tests.cli_reference --write` brings it up."""
    assert cli_reference.DOC.read_text() == cli_reference.page()


def test_the_reference_of_python_is_up_to_date() -> None:
    """F85: `python -m tests.python_reference --write` brings it up."""
    assert python_reference.DOC.read_text() == python_reference.page()


def test_what_packages_export_is_explained() -> None:
    """F85: every class and function has a docstring."""
    missing = [
        f"{module}.{name}"
        for module in python_reference.MODULES
        for name, found in python_reference.exported(module)
        if (inspect.isclass(found) or inspect.isfunction(found)) and not inspect.getdoc(found)
    ]
    assert missing == []


#: In a fence of no language: what a reader types.
_TYPED = re.compile(r"^(?:\$ )?dovetail (.+?)(?:\s+#.*)?$", re.MULTILINE)


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_commands_in_documents_can_be_typed(path: Path) -> None:
    """U4: also in blocks that are not run, every command and option of ours exists."""
    root = cli_reference.whole_tree()
    for block in doc_pages.blocks(path):
        if block.language not in ("", "bash", "console") or path.parent.name == "decisions":
            continue
        for typed in _TYPED.findall(block.text.replace("\\\n", " ")):
            lexer = shlex.shlex(typed, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            words = list(takewhile(lambda word: not set(word) <= set("();<>|&"), lexer))
            refused = cli_reference.refusal(root, words)
            assert refused is None, f"{block.page}:{block.line}: dovetail {typed}: {refused}"


def test_the_page_of_kafka_is_of_today() -> None:
    """K12, K13: `python -m tests.kafka_reference --write` brings it up."""
    text = kafka_reference.DOC.read_text()
    assert kafka_reference.page(text) == text


def test_no_request_is_newer_than_kafkas() -> None:
    """K13: a version that Kafka 4.3 does not have is not advertised."""
    ours = {api.key: api for api in kafka_reference.SUPPORTED.values()}
    for key, name, lowest, highest in kafka_reference.KAFKA:
        if key in ours:
            assert ours[key].name == name
            assert lowest <= ours[key].lowest <= ours[key].highest <= highest


def test_every_page_is_in_the_navigation_once() -> None:
    """U4: nothing is written that nobody finds."""
    config = yaml.safe_load((doc_pages.ROOT / "mkdocs.yml").read_text())
    listed = list(_leaves(config["nav"]))
    there = {
        str(path.relative_to(doc_pages.DOCS))
        for path in doc_pages.DOCS.rglob("*.md")
        if "decisions" not in path.parts
    }
    assert sorted(listed) == sorted(there)


def test_the_front_page_leads_to_every_page() -> None:
    """U8: who reads plain Markdown, without the site's navigation, finds every page too."""
    front = doc_pages.DOCS / "index.md"
    links = [link.partition("#")[0] for link in doc_pages.links(front)]
    led_to = {(doc_pages.DOCS / link).resolve() for link in links}
    pages = {path for path in doc_pages.DOCS.rglob("*.md") if "decisions" not in path.parts}
    assert pages - led_to == {front}


def _leaves(nav: object) -> "list[str]":
    if isinstance(nav, str):
        return [nav]
    inner = nav.values() if isinstance(nav, dict) else nav
    assert not isinstance(inner, str)
    return [leaf for one in inner for leaf in _leaves(one)]  # type: ignore[attr-defined]


def test_the_site_is_built_and_loads_nothing_from_outside(tmp_path: Path) -> None:
    """U4: no warning while it is built; no page of it asks another address for anything."""
    # A process of its own: what the builder imports warns, and warnings are errors here.
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "-q", "--site-dir", tmp_path],
        cwd=doc_pages.ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        check=True,
        capture_output=True,
        timeout=200,
    )
    built = list(tmp_path.rglob("*.html"))
    assert len(built) > 20
    for page in built:
        for tag in re.findall(r"<(?:link|script|img|iframe|source)\b[^>]*>", page.read_text()):
            outside = re.search(r"(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)", tag)
            assert outside is None, f"{page.name}: {tag}"
