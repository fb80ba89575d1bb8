"""Binds rules to a principal, for handlers."""

import shlex
from collections.abc import Callable, Collection
from typing import Protocol

from dovetail.access.rules import Kind, Operation, timeline_name
from dovetail.errors import Forbidden

#: Judgements that are remembered until a rule changes; a node with more topics and clients than
#: that judges anew.
_REMEMBERED_MAX = 100_000


class Access(Protocol):
    """What one client may do."""

    @property
    def principal(self) -> str:
        """The user's name; empty if logins are off."""
        ...

    def allows(self, operation: Operation, kind: Kind, name: str) -> bool:
        """Whether it may."""
        ...

    def allows_some(self, operation: Operation, kind: Kind) -> bool:
        """Whether there is any name of this kind for which it may."""
        ...

    def demand(self, operation: Operation, kind: Kind, name: str) -> None:
        """Raises `Forbidden` if it may not."""
        ...


class _Everything:
    """What everybody may do where access rules are switched off."""

    principal = ""

    def allows(self, operation: Operation, kind: Kind, name: str) -> bool:
        return True

    def allows_some(self, operation: Operation, kind: Kind) -> bool:
        return True

    def demand(self, operation: Operation, kind: Kind, name: str) -> None:
        """Nothing to say."""


EVERYTHING: Access = _Everything()


class _Bound:
    """One principal at one host."""

    def __init__(self, guard: "Guard", principal: str, host: str) -> None:
        self._guard = guard
        self.principal = principal
        self._host = host

    def allows(self, operation: Operation, kind: Kind, name: str) -> bool:
        return self._guard.allows(self.principal, self._host, operation, kind, name)

    def allows_some(self, operation: Operation, kind: Kind) -> bool:
        return self._guard.allows_some(self.principal, self._host, operation, kind)

    def demand(self, operation: Operation, kind: Kind, name: str) -> None:
        if not self.allows(operation, kind, name):
            what = f"{operation.name.lower()} {kind.name.lower()} {name!r}"
            raise Forbidden(
                f"{self.principal!r} may not {what}; an admin can allow it with: "
                f"{_command(self.principal, operation, kind, name)}",
                kind=kind.name.lower(),
            )


def _command(principal: str, operation: Operation, kind: Kind, name: str) -> str:
    """What an admin types to allow it."""
    option = "--" + kind.name.lower().replace("_", "-")
    if kind is Kind.TOPIC and name.startswith(timeline_name("")):
        option, name = "--timeline", name.removeprefix(timeline_name(""))

    words = [principal, operation.name.lower().replace("_", "-"), option]
    if kind is not Kind.CLUSTER:
        words.append(name)
    return f"dovetail access allow {shlex.join(words)}"


class Guard:
    """Judges by rules that change, and remembers what it found."""

    def __init__(
        self,
        judge: Callable[[str, str, Operation, Kind, str], bool],
        judge_some: Callable[[str, str, Operation, Kind], bool],
        admins: Collection[str],
    ) -> None:
        self._judge = judge
        self._judge_some = judge_some
        self._admins = frozenset(admins)
        self._known: dict[tuple[str, str, Operation, Kind, str], bool] = {}

    def bind(self, principal: str, host: str) -> Access:
        """For one connection."""
        return _Bound(self, principal, host)

    def forget(self) -> None:
        """The rules have changed."""
        self._known.clear()

    def allows(
        self, principal: str, host: str, operation: Operation, kind: Kind, name: str
    ) -> bool:
        if principal in self._admins:
            return True
        key = (principal, host, operation, kind, name)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _REMEMBERED_MAX:
                self._known.clear()
            found = self._known[key] = self._judge(*key)
        return found

    def allows_some(self, principal: str, host: str, operation: Operation, kind: Kind) -> bool:
        return principal in self._admins or self._judge_some(principal, host, operation, kind)
