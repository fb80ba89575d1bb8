"""DescribeAcls, CreateAcls and DeleteAcls: access rules, in Kafka's messages.

Principals are `User:name` on the wire and bare names in this module.
"""

from itertools import groupby
from typing import TypeVar

from dovetail.access import (
    CLUSTER_NAME,
    AccessRegistry,
    Filter,
    Kind,
    Operation,
    Pattern,
    Permission,
    Rule,
)
from dovetail.errors import DovetailError, InvalidInput
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode, code_of
from dovetail.kafka.handlers.backend import Backend, Call

_Number = TypeVar("_Number", Permission, Operation, Kind, Pattern)

_ANY = 1
_MATCH = 2
_USER = "User:"

_OFF = "nobody logs in here, so there are no users and no rules; see docs/security.md"


async def describe_acls(
    backend: Backend, call: Call, request: m.DescribeAclsRequest
) -> m.DescribeAclsResponse:
    """The rules that are asked for."""
    try:
        registry = _registry(backend, call, Operation.DESCRIBE)
        found = registry.rules(_filter(request))
    except DovetailError as error:
        return m.DescribeAclsResponse(
            error_code=_code(error), error_message=str(error), resources=()
        )

    resources = []
    found.sort(key=lambda rule: (rule.kind, rule.name, rule.pattern))
    for (kind, name, pattern), rules in groupby(found, lambda r: (r.kind, r.name, r.pattern)):
        acls = tuple(
            m.DescribeAclsResponseAcl(
                principal=_USER + rule.principal,
                host=rule.host,
                operation=rule.operation,
                permission_type=rule.permission,
            )
            for rule in rules
        )
        resources.append(
            m.DescribeAclsResponseResource(
                resource_type=kind, resource_name=name, pattern_type=pattern, acls=acls
            )
        )

    return m.DescribeAclsResponse(error_code=ErrorCode.NONE, resources=tuple(resources))


async def create_acls(
    backend: Backend, call: Call, request: m.CreateAclsRequest
) -> m.CreateAclsResponse:
    """Adds rules, each with its own outcome."""
    results = []
    for wanted in request.creations:
        result = m.CreateAclsResponseResult(error_code=ErrorCode.NONE)
        try:
            await _registry(backend, call, Operation.ALTER).add_rules([_rule(wanted)])
        except DovetailError as error:
            result = m.CreateAclsResponseResult(error_code=_code(error), error_message=str(error))
        results.append(result)
    return m.CreateAclsResponse(results=tuple(results))


async def delete_acls(
    backend: Backend, call: Call, request: m.DeleteAclsRequest
) -> m.DeleteAclsResponse:
    """Removes the rules that are meant, and says which."""
    results = []
    for wanted in request.filters:
        try:
            registry = _registry(backend, call, Operation.ALTER)
            removed = await registry.remove_rules(_filter(wanted))
        except DovetailError as error:
            results.append(
                m.DeleteAclsResponseFilterResult(
                    error_code=_code(error), error_message=str(error), matching_acls=()
                )
            )
            continue

        results.append(
            m.DeleteAclsResponseFilterResult(
                error_code=ErrorCode.NONE,
                matching_acls=tuple(
                    m.DeleteAclsResponseMatchingAcl(
                        error_code=ErrorCode.NONE,
                        resource_type=rule.kind,
                        resource_name=rule.name,
                        pattern_type=rule.pattern,
                        principal=_USER + rule.principal,
                        host=rule.host,
                        operation=rule.operation,
                        permission_type=rule.permission,
                    )
                    for rule in removed
                ),
            )
        )
    return m.DeleteAclsResponse(filter_results=tuple(results))


def _registry(backend: Backend, call: Call, operation: Operation) -> AccessRegistry:
    call.access.demand(operation, Kind.CLUSTER, CLUSTER_NAME)
    if not backend.authorizes:
        raise _SwitchedOff(_OFF)
    return backend.registry


class _SwitchedOff(InvalidInput):
    """There are no access rules here."""


def _code(error: DovetailError) -> ErrorCode:
    return ErrorCode.SECURITY_DISABLED if isinstance(error, _SwitchedOff) else code_of(error)


def _filter(wanted: m.AclFilter) -> Filter:
    try:
        pattern = wanted.pattern_type_filter
        return Filter(
            principal=_principal(wanted.principal_filter),
            permission=_one(Permission, wanted.permission_type),
            operation=_one(Operation, wanted.operation),
            kind=_one(Kind, wanted.resource_type_filter),
            name=wanted.resource_name_filter,
            pattern=None if pattern == _MATCH else _one(Pattern, pattern),
            host=wanted.host_filter,
            matching=pattern == _MATCH,
        )
    except ValueError as error:
        raise InvalidInput(f"no such rule here: {error}") from error


def _one(kind: type[_Number], number: int) -> _Number | None:
    return None if number == _ANY else kind(number)


def _rule(wanted: m.CreateAclsRequestCreation) -> Rule:
    try:
        principal = _principal(wanted.principal)
        assert principal is not None
        return Rule(
            principal=principal,
            permission=Permission(wanted.permission_type),
            operation=Operation(wanted.operation),
            kind=Kind(wanted.resource_type),
            name=wanted.resource_name,
            pattern=Pattern(wanted.resource_pattern_type),
            host=wanted.host,
        )
    except ValueError as error:
        raise InvalidInput(f"no such rule here: {error}") from error


def _principal(text: str | None) -> str | None:
    if text is None:
        return None
    if not text.startswith(_USER) or text == _USER:
        raise InvalidInput(f"principal {text!r} is not of the form 'User:name'")
    return text.removeprefix(_USER)
