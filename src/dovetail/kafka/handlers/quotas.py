"""DescribeClientQuotas and AlterClientQuotas (`access.quotas`)."""

from dovetail.access import CLUSTER_NAME, Kind, Operation
from dovetail.access.quotas import CLIENT, USER, Entity
from dovetail.errors import DovetailError, InvalidInput
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode, code_of
from dovetail.kafka.handlers.backend import Backend, Call

_EXACT = 0
_DEFAULT = 1
_ANY = 2

#: A kind that Kafka has; nothing here has quotas by it.
_IP = "ip"


async def describe_quotas(
    backend: Backend, call: Call, request: m.DescribeClientQuotasRequest
) -> m.DescribeClientQuotasResponse:
    """The entities that match every component; with `strict` those that have no other part."""
    try:
        call.access.demand(Operation.DESCRIBE_CONFIGS, Kind.CLUSTER, CLUSTER_NAME)
        kinds = [component.entity_type for component in request.components]
        if len(set(kinds)) < len(kinds):
            raise InvalidInput("Duplicate filter component entity type")
        for component in request.components:
            _check_component(component)
    except DovetailError as error:
        return m.DescribeClientQuotasResponse(
            error_code=code_of(error), error_message=str(error), entries=None
        )

    entries = []
    for entity, values in backend.quotas.all().items():
        parts = dict(entity)

        if request.strict and parts.keys() != set(kinds):
            continue
        if all(_matches(component, parts) for component in request.components):
            entries.append(
                m.DescribeClientQuotasResponseEntry(
                    entity=tuple(
                        m.DescribeClientQuotasResponseEntity(entity_type=kind, entity_name=name)
                        for kind, name in sorted(parts.items(), reverse=True)
                    ),
                    values=tuple(
                        m.DescribeClientQuotasResponseValue(key=key, value=value)
                        for key, value in sorted(values.items())
                    ),
                )
            )
    return m.DescribeClientQuotasResponse(error_code=ErrorCode.NONE, entries=tuple(entries))


def _check_component(component: m.DescribeClientQuotasRequestComponent) -> None:
    kind = component.entity_type
    if kind not in (USER, CLIENT, _IP):
        raise InvalidInput(f"Unexpected entity type {kind[:80]!r}")
    if component.match_type not in (_EXACT, _DEFAULT, _ANY):
        raise InvalidInput(f"Unexpected match type {component.match_type}")
    if component.match_type == _EXACT and component.match is None:
        raise InvalidInput("an exact match names the entity")


def _matches(
    component: m.DescribeClientQuotasRequestComponent, parts: dict[str, str | None]
) -> bool:
    if component.entity_type not in parts:
        return False
    name = parts[component.entity_type]
    if component.match_type == _EXACT:
        return name == component.match
    return name is None if component.match_type == _DEFAULT else True


async def alter_quotas(
    backend: Backend, call: Call, request: m.AlterClientQuotasRequest
) -> m.AlterClientQuotasResponse:
    """Each entity with its own outcome, whole or not at all."""
    entries = []
    for entry in request.entries:
        code, message = ErrorCode.NONE, None
        try:
            call.access.demand(Operation.ALTER_CONFIGS, Kind.CLUSTER, CLUSTER_NAME)
            changes = {op.key: None if op.remove else op.value for op in entry.ops}
            if len(changes) < len(entry.ops):
                raise InvalidInput("Duplicate quota key in one entity")
            await backend.quotas.change(
                _entity(entry.entity), changes, check_only=request.validate_only
            )
        except DovetailError as error:
            code, message = code_of(error), str(error)

        entries.append(
            m.AlterClientQuotasResponseEntry(
                error_code=code,
                error_message=message,
                entity=tuple(
                    m.AlterClientQuotasResponseEntity(
                        entity_type=part.entity_type, entity_name=part.entity_name
                    )
                    for part in entry.entity
                ),
            )
        )
    return m.AlterClientQuotasResponse(entries=tuple(entries))


def _entity(parts: tuple[m.AlterClientQuotasRequestEntity, ...]) -> Entity:
    if len({part.entity_type for part in parts}) < len(parts):
        raise InvalidInput("Duplicate entity type in one entity")
    return frozenset((part.entity_type, part.entity_name) for part in parts)
