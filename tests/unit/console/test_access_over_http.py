"""Who may change users and access rules over HTTP."""

from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.console.nouns import access
from dovetail.console.nouns.access import RuleGiven
from dovetail.console.web.signing_in import SignIn
from dovetail.errors import Forbidden

RULE = RuleGiven(user="shop", operation="write", kind="topic", name="orders*")


class Changes:
    """The cluster's side, which counts what reaches it."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self, *_: object) -> int:
        self.count += 1
        return 1


def desk_of(*, guarded: bool, token: str) -> Any:
    security = SimpleNamespace(on=guarded)
    return SimpleNamespace(
        settings=SimpleNamespace(security=security), sign_in=SignIn(token), kafka=Changes()
    )


@pytest.mark.parametrize(
    ("guarded", "token", "allowed"),
    [(True, "", False), (True, "a-token-of-some-length", True), (False, "", True)],
)
async def test_a_guarded_node_without_a_token_gives_no_rights_away(
    guarded: bool, token: str, allowed: bool
) -> None:
    """R4: an account on the machine without a login is no way to one."""
    desk = desk_of(guarded=guarded, token=token)
    asked: Any = SimpleNamespace(body=RULE, path={"user": "shop"})
    for change in (access.add_rule, access.remove_rule, access.remove_user):
        if allowed:
            await change(desk, asked)
        else:
            with pytest.raises(Forbidden, match="token_file"):
                await change(desk, asked)
    assert desk.kafka.count == (3 if allowed else 0)
