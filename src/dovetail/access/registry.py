"""Users and rules in the coordination service, watched by every node.

    /access/users/<name>     the credentials of a user, by mechanism
    /access/rules/<digest>   a rule, under a digest of itself: adding one twice changes nothing

Promise: a change applies on this node when the call returns, and on the others as soon as their
watch delivers it. Names are encoded in hexadecimal, so that any name can be a key.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping

import msgspec

from dovetail.access.credentials import Credential, Mechanism, check_user
from dovetail.access.rules import (
    Filter,
    Kind,
    Operation,
    Rule,
    RuleIndex,
    allows,
    allows_some,
    check_rule,
)
from dovetail.coordination import ABSENT, Coordinator, Delete, Put, Revision, Unchanged
from dovetail.coordination.mirror import Mirror
from dovetail.errors import InvalidInput, Unavailable

ACCESS = "/access/"
_USERS = f"{ACCESS}users/"
_RULES = f"{ACCESS}rules/"

#: Users with such names are made by nodes, for themselves.
HOUSE_PREFIX = "__dovetail_"

_ATTEMPTS_MAX = 10

User = dict[Mechanism, Credential]


class AccessRegistry:
    """The view of all users and rules, and the way to change them."""

    def __init__(self, coordinator: Coordinator, *, on_change: Callable[[], None]) -> None:
        self._coordinator = coordinator
        self._on_change = on_change
        self._users: dict[str, User] = {}
        self._rules: dict[str, Rule] = {}
        #: Of `_rules`; None until it is asked for again.
        self._index: RuleIndex | None = None
        self._mirror = Mirror(coordinator, ACCESS, apply=self._apply, settled=on_change)

    async def start(self) -> None:
        """Reads everything, then follows. Raises `CoordinationDown`."""
        await self._mirror.start()

    async def stop(self) -> None:
        """Follows no more."""
        await self._mirror.stop()

    # Users

    def user(self, name: str) -> User | None:
        """What is kept of a user's password."""
        return self._users.get(name)

    def users(self) -> Mapping[str, User]:
        """All of them."""
        return self._users

    async def change_user(self, name: str, change: Callable[[User], User]) -> None:
        """Changes what is kept of a user; nothing left means that it is gone.

        Raises `InvalidInput`, `Unavailable`, or what `change` raises; then nothing is changed.
        """
        check_user(name)
        if name.startswith(HOUSE_PREFIX):
            raise InvalidInput(f"names that begin with {HOUSE_PREFIX!r} are reserved for the node")
        key = f"{_USERS}{name.encode().hex()}"
        for _ in range(_ATTEMPTS_MAX):
            found = await self._coordinator.get(key)
            user = {} if found is None else _decode_user(found.value)
            changed = change(user)
            value = msgspec.json.encode({int(each): kept for each, kept in changed.items()})
            step = Put(key, value) if changed else Delete(key)
            outcome = await self._coordinator.transact(
                [step], conditions=[Unchanged(key, ABSENT if found is None else found.revision)]
            )
            if outcome.applied:
                self._mirror.note(key, value if changed else None, outcome.revision)
                self._on_change()
                return
        raise Unavailable(f"other clients keep changing user {name!r}; try again")

    # Rules

    def rules(self, wanted: Filter | None = None) -> list[Rule]:
        """The rules that are meant, in order."""
        found = [rule for rule in self._rules.values() if wanted is None or wanted.takes(rule)]
        return sorted(found, key=lambda rule: (rule.kind, rule.name, rule.principal))

    def judge(self, principal: str, host: str, operation: Operation, kind: Kind, name: str) -> bool:
        """Whether the rules allow it."""
        if self._index is None:
            self._index = RuleIndex(self._rules.values())
        rules = self._index.about(principal, kind, name)
        return allows(rules, principal, host, operation, kind, name)

    def judge_some(self, principal: str, host: str, operation: Operation, kind: Kind) -> bool:
        """Whether the rules allow it for any name."""
        return allows_some(self._rules.values(), principal, host, operation, kind)

    async def add_rules(self, rules: Iterable[Rule]) -> None:
        """Adds rules. Raises `InvalidInput` before anything is changed."""
        wanted = list(rules)
        for rule in wanted:
            check_rule(rule)
        for rule in wanted:
            key, value = _key_of(rule), msgspec.json.encode(rule)
            outcome = await self._coordinator.transact([Put(key, value)])
            self._mirror.note(key, value, outcome.revision)
        self._on_change()

    async def remove_rules(self, wanted: Filter) -> list[Rule]:
        """Removes all rules that are meant, and says which."""
        removed = self.rules(wanted)
        for rule in removed:
            outcome = await self._coordinator.transact([Delete(_key_of(rule))])
            self._mirror.note(_key_of(rule), None, outcome.revision)
        self._on_change()
        return removed

    # What the mirror shows

    def _apply(self, key: str, value: bytes | None, _: Revision) -> None:
        if key.startswith(_USERS):
            name = bytes.fromhex(key.removeprefix(_USERS)).decode()
            if value is None:
                self._users.pop(name, None)
            else:
                self._users[name] = _decode_user(value)
            return

        self._index = None
        if value is None:
            self._rules.pop(key, None)
        else:
            self._rules[key] = msgspec.json.decode(value, type=Rule)


def _decode_user(value: bytes) -> User:
    found = msgspec.json.decode(value, type=dict[int, Credential])
    return {Mechanism(number): credential for number, credential in found.items()}


def _key_of(rule: Rule) -> str:
    return f"{_RULES}{hashlib.sha256(msgspec.json.encode(rule)).hexdigest()[:32]}"
