"""DescribeUserScramCredentials and AlterUserScramCredentials: users and their passwords."""

from collections.abc import Callable

from dovetail.access import CLUSTER_NAME, AccessRegistry, Credential, Kind, Mechanism, Operation
from dovetail.access.credentials import from_salted
from dovetail.errors import DovetailError, InvalidInput, NotFound
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode, code_of
from dovetail.kafka.handlers.backend import Backend, Call

_User = dict[Mechanism, Credential]
_Change = Callable[[_User], _User]


class _Unknown(NotFound):
    """No such user, or not by this mechanism."""


async def describe_users(
    backend: Backend, call: Call, request: m.DescribeUserScramCredentialsRequest
) -> m.DescribeUserScramCredentialsResponse:
    """Users and how they can log in; nothing of their passwords."""
    try:
        known = _registry(backend, call, Operation.DESCRIBE).users()
    except DovetailError as error:
        # Not in the whole answer's error: librdkafka 2.16 breaks down when it reads one there.
        asked = {user.name for user in request.users or ()} or {"*"}
        return m.DescribeUserScramCredentialsResponse(
            error_code=ErrorCode.NONE,
            results=tuple(
                m.DescribeUserScramCredentialsResponseResult(
                    user=name,
                    error_code=_code(error),
                    error_message=str(error),
                    credential_infos=(),
                )
                for name in sorted(asked)
            ),
        )

    names = sorted({user.name for user in request.users} if request.users else known)
    results = []
    for name in names:
        user = known.get(name)
        results.append(
            m.DescribeUserScramCredentialsResponseResult(
                user=name,
                error_code=ErrorCode.NONE if user else ErrorCode.RESOURCE_NOT_FOUND,
                error_message=None if user else f"there is no user {name!r}",
                credential_infos=tuple(
                    m.DescribeUserScramCredentialsResponseCredential(
                        mechanism=mechanism, iterations=credential.rounds
                    )
                    for mechanism, credential in (user or {}).items()
                ),
            )
        )

    return m.DescribeUserScramCredentialsResponse(error_code=ErrorCode.NONE, results=tuple(results))


async def alter_users(
    backend: Backend, call: Call, request: m.AlterUserScramCredentialsRequest
) -> m.AlterUserScramCredentialsResponse:
    """Sets and removes passwords; each user with its own outcome, whole or not at all."""
    steps: dict[str, list[_Change]] = {}
    wrong: dict[str, DovetailError] = {}
    for deletion in request.deletions:
        steps.setdefault(deletion.name, []).append(_removing(deletion.name, deletion.mechanism))
    for upsertion in request.upsertions:
        try:
            step = _setting(upsertion)
        except DovetailError as error:
            wrong[upsertion.name] = error
            steps.setdefault(upsertion.name, [])
        else:
            steps.setdefault(upsertion.name, []).append(step)

    results = []
    for name, changes in steps.items():
        code, message = ErrorCode.NONE, None
        try:
            if name in wrong:
                raise wrong[name]
            await _registry(backend, call, Operation.ALTER).change_user(name, _all(changes))
        except DovetailError as error:
            code, message = _code(error), str(error)
        results.append(
            m.AlterUserScramCredentialsResponseResult(
                user=name, error_code=code, error_message=message
            )
        )

    return m.AlterUserScramCredentialsResponse(results=tuple(results))


def _registry(backend: Backend, call: Call, operation: Operation) -> AccessRegistry:
    call.access.demand(operation, Kind.CLUSTER, CLUSTER_NAME)
    return backend.registry


def _code(error: DovetailError) -> ErrorCode:
    return ErrorCode.RESOURCE_NOT_FOUND if isinstance(error, _Unknown) else code_of(error)


def _all(changes: list[_Change]) -> _Change:
    def apply(user: _User) -> _User:
        for change in changes:
            user = change(user)
        return user

    return apply


def _removing(name: str, number: int) -> _Change:
    def remove(user: _User) -> _User:
        if number not in user:
            raise _Unknown(f"user {name!r} has no password for mechanism {number}")
        return {mechanism: kept for mechanism, kept in user.items() if mechanism != number}

    return remove


def _setting(wanted: m.AlterUserScramCredentialsRequestUpsertion) -> _Change:
    try:
        mechanism = Mechanism(wanted.mechanism)
    except ValueError as error:
        raise InvalidInput(f"mechanism {wanted.mechanism} is unknown") from error
    kept = from_salted(
        mechanism,
        bytes(wanted.salted_password),
        salt=bytes(wanted.salt),
        rounds=wanted.iterations,
    )
    return lambda user: {**user, mechanism: kept}
