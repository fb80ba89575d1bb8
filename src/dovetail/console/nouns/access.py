"""Users and access rules over HTTP: list, delete a user, add and remove rules.

Passwords are set on the command line (`dovetail user set`), which sends salted keys alone.
"""

import asyncio
from typing import Annotated, Literal

from msgspec import Meta, Struct

from dovetail.admin import access
from dovetail.admin.access import Rule
from dovetail.admin.users import User, delete_user, list_users
from dovetail.console.desk import Desk
from dovetail.console.web.endpoint import Asked, Endpoint
from dovetail.errors import Forbidden, InvalidInput, NotFound

#: Users and names of what a rule is about; a user is not longer than this in any login.
Name = Annotated[str, Meta(min_length=1, max_length=1_000)]
Kind = Literal["topic", "timeline", "group", "transactional_id", "cluster"]


class AccessShown(Struct, frozen=True):
    """Users, rules, and whether logins and rules are in force on this node."""

    #: How clients log in; empty if they need not.
    login: str
    #: Whether the certificates of clients say who they are.
    certificates: bool
    #: Whether rules decide; without that everybody may do everything.
    authorize: bool
    admins: list[str]
    users: list[User]
    rules: list[Rule]


class RuleGiven(Struct, frozen=True, forbid_unknown_fields=True):
    """A rule to add or to remove. A name that ends with `*` is a prefix."""

    user: Name
    operation: Name
    kind: Kind
    name: Name
    rule: Literal["allow", "deny"] = "allow"


class RulesRemoved(Struct, frozen=True):
    """How many rules there were to remove."""

    removed: int


async def show_access(desk: Desk, _: Asked[None, None]) -> AccessShown:
    """Users with a password, and rules. Who logs in by certificate is in no list."""
    wanted = desk.settings.security
    users, rules = await asyncio.gather(
        desk.kafka.run(list_users), desk.kafka.run(access.list_rules)
    )
    return AccessShown(
        login=",".join(wanted.mechanisms).lower(),
        certificates=wanted.tls_clients != "none",
        authorize=wanted.authorize,
        admins=sorted(wanted.admin_names()),
        users=users,
        rules=rules,
    )


def _demand_sign_in(desk: Desk) -> None:
    """Raises `Forbidden` where clients must log in and callers of HTTP need not: whoever has an
    account on this machine could take every right."""
    if desk.settings.security.on and not desk.sign_in.required:
        raise Forbidden(
            "users and access rules are changed over HTTP only with a token; set http.token_file, "
            "or use `dovetail access` and `dovetail user`",
            kind="cluster",
        )


def _rules(given: RuleGiven) -> list[Rule]:
    """The one rule, checked. Raises `InvalidInput`."""
    about = [(str(given.kind), given.name)]
    if given.kind == "cluster":
        named = access.resources(topics=None, timelines=None, groups=None, cluster=True)
        if about != named:
            raise InvalidInput(f"a rule about the cluster names it {named[0][1]!r}")
    return access.rules_for(given.user, [given.operation], about, permission=given.rule)


async def add_rule(desk: Desk, asked: Asked[None, RuleGiven]) -> None:
    """In force at once, on all nodes; the same rule again changes nothing."""
    _demand_sign_in(desk)
    await desk.kafka.run(access.add_rules, _rules(asked.body))


async def remove_rule(desk: Desk, asked: Asked[None, RuleGiven]) -> RulesRemoved:
    """For whatever host it was made. 404 if there is no such rule."""
    _demand_sign_in(desk)
    removed = await desk.kafka.run(access.remove_rules, _rules(asked.body))
    if not removed:
        raise NotFound("there is no such rule; the list may be older than its removal")
    return RulesRemoved(removed)


async def remove_user(desk: Desk, asked: Asked[None, None]) -> None:
    """Its connections are closed, on all nodes; its rules stay."""
    _demand_sign_in(desk)
    await desk.kafka.run(delete_user, asked.path["user"])


ENDPOINTS = (
    Endpoint("GET", "/v1/access", show_access, "Users and access rules", AccessShown),
    Endpoint(
        "POST",
        "/v1/access/rules",
        add_rule,
        "Add an access rule",
        body=RuleGiven,
        status=204,
        action="rule.add",
    ),
    Endpoint(
        "POST",
        "/v1/access/rules/remove",
        remove_rule,
        "Remove an access rule",
        RulesRemoved,
        body=RuleGiven,
        action="rule.remove",
    ),
    Endpoint(
        "DELETE",
        "/v1/access/users/{user}",
        remove_user,
        "Delete a user",
        status=204,
        action="user.delete",
    ),
)
