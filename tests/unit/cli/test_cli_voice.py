"""One voice in the whole command line: a walk over every noun and verb."""

import ast
import inspect
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cli_reference import whole_tree

ROOT = whole_tree()

#: What prints for people and for programs.
PRINTERS = {"print_done", "print_json", "print_rows", "print_table"}
#: Where one name has two meanings, each is said by its metavar: these are the ones that are meant.
SEVERAL_MEANINGS = {
    "--config": {"FILE", "NAME=VALUE"},
    "--to": {"PATH", "POSITION", "TOPIC"},
    "--from": {"POSITION", "TIME"},
    "--key": {"TEXT", "KEY", "COLUMN"},
    "--timeout": {"DURATION"},
    # A filter may ask for the name alone.
    "--header": {"NAME=VALUE", "NAME[=VALUE]"},
}
#: One letter stands for these and nothing else.
LETTERS = {
    "-a": {"--all"},
    "-b": {"--bootstrap"},
    "-d": {"--database"},
    "-e": {"--environment"},
    "-f": {"--follow", "--file"},
    "-g": {"--group"},
    "-h": {"--help"},
    "-H": {"--header"},
    "-k": {"--key", "--bootstrap"},
    "-K": {"--key-separator"},
    "-n": {"--count", "--limit", "--lines", "--messages"},
    "-p": {"--partitions"},
    "-t": {"--topic"},
    "-v": {"--value"},
    "-w": {"--watch", "--workers"},
    "-y": {"--yes"},
}


def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from walk(below, (*path, name))


ALL = list(walk(ROOT, ("dovetail",)))
VERBS = [(path, command) for path, command in ALL if not hasattr(command, "commands")]
IDS = [" ".join(path) for path, _ in ALL]
VERB_IDS = [" ".join(path) for path, _ in VERBS]


def options_of(command: Any) -> list[Any]:
    return [p for p in command.params if p.param_type_name == "option" and not p.hidden]


def names_of(command: Any) -> set[str]:
    return {name for option in options_of(command) for name in option.opts}


def examples_of(command: Any) -> list[str]:
    text = re.sub(r"\[/?bold\]", "", command.epilog or "")
    return [line.strip() for line in text.splitlines() if "dovetail " in line]


@pytest.mark.parametrize(("path", "command"), ALL, ids=IDS)
def test_help_explains_and_shows_examples(path: tuple[str, ...], command: Any) -> None:
    """U4: every noun and verb says in a sentence what it does, and shows how it is called."""
    assert re.match(r"[A-Z].*\.", command.help or "", re.DOTALL), "no sentence"
    shown = examples_of(command)
    assert shown, "no examples"
    assert any(" ".join(path) in line for line in shown), f"no example of {path} itself"


@pytest.mark.parametrize(("path", "command"), ALL, ids=IDS)
def test_every_example_in_help_can_be_typed(path: tuple[str, ...], command: Any) -> None:
    """U4: an example that is copied is understood, word by word."""
    for line in examples_of(command):
        typed = line.partition("   #")[0]
        for part in re.split(r"[|<>&]", typed):
            if "dovetail " not in part:
                continue
            words = shlex.split(part[part.index("dovetail ") :].rstrip(" )"))
            understood(ROOT, words[1:])


def understood(command: Any, words: list[str]) -> None:
    """Parses as the program would, noun by noun, and calls nothing."""
    context = command.make_context("x", list(words), obj=None)
    if hasattr(command, "commands"):
        name, below, rest = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert name is not None
        understood(below, rest)


@pytest.mark.parametrize(("path", "command"), VERBS, ids=VERB_IDS)
def test_parameters_are_explained_alike(path: tuple[str, ...], command: Any) -> None:
    """U4: each has a help that ends with a full stop, and a name for its value in capitals."""
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        assert (parameter.help or "").endswith("."), f"{parameter.name}: {parameter.help!r}"
        metavar = parameter.metavar
        if metavar:
            assert metavar == metavar.upper(), f"{parameter.name}: {metavar}"
        elif parameter.type_descriptor.annotation is str:
            raise AssertionError(f"{parameter.name}: no word for its value")


def test_one_name_means_one_thing() -> None:
    """U4: an option has the same value and the same letter wherever it appears."""
    values, letters = defaultdict(set), defaultdict(set)
    for _, command in ALL:
        for option in options_of(command):
            long = next(name for name in option.opts if name.startswith("--"))
            values[long].add(option.metavar or "")
            for name in option.opts:
                if not name.startswith("--"):
                    letters[name].add(long)
    for name, found in values.items():
        if len(found) > 1:
            assert found <= SEVERAL_MEANINGS.get(name, set()), f"{name} takes {found}"
    for letter, found in letters.items():
        assert found <= LETTERS.get(letter, set()), f"{letter} stands for {found}"


@pytest.mark.parametrize(("path", "command"), VERBS, ids=VERB_IDS)
def test_where_there_is_a_table_there_is_json(path: tuple[str, ...], command: Any) -> None:
    """U4: what a person reads as a table, a program gets with `--json`."""
    if called_by(command.callback) & {*PRINTERS, "Table"}:
        assert "--json" in names_of(command)


def called_by(callback: Any) -> set[str]:
    """The names that a command's function calls, through functions of its own module."""
    module = inspect.getmodule(callback)
    assert module is not None
    functions = {
        node.name: node
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    found: set[str] = set()
    left = [callback.__name__]
    while left:
        name = left.pop()
        if name not in functions:
            continue
        calls = {
            getattr(node.func, "id", getattr(node.func, "attr", ""))
            for node in ast.walk(functions[name])
            if isinstance(node, ast.Call)
        }
        left += sorted(calls - found)
        found |= calls
    return found


@pytest.mark.parametrize(("path", "command"), VERBS, ids=VERB_IDS)
def test_clients_of_a_node_are_called_alike(path: tuple[str, ...], command: Any) -> None:
    """U4: who asks a node takes its address and a time limit; who deletes takes a yes."""
    names = names_of(command)
    if "--bootstrap" in names and path[1] != "relay":
        assert "--timeout" in names
    if path[-1] in ("delete", "drop"):
        assert "--yes" in names


def test_the_walk_sees_the_whole_tree() -> None:
    """U4: the walk itself: nouns, verbs, and verbs two levels down."""
    assert len(VERBS) > 45
    assert ("dovetail", "outbox", "dead", "replay") in [path for path, _ in VERBS]
    called = set().union(*(called_by(command.callback) for _, command in VERBS))
    assert called >= PRINTERS
