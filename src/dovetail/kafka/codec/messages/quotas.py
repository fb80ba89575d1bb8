"""DescribeClientQuotas and AlterClientQuotas."""

from dovetail.kafka.codec.schema import Bool, Float64, Int8, Int16, Int32, String, message


@message
class DescribeClientQuotasRequestComponent:
    """Match type 0 is this name, 1 the default, 2 any name."""

    entity_type: String
    match_type: Int8
    match: String | None


@message
class DescribeClientQuotasRequest:
    """Quotas of matching entities."""

    components: tuple[DescribeClientQuotasRequestComponent, ...]
    strict: Bool


@message
class DescribeClientQuotasResponseEntity:
    """One part of an entity; a null name is the default."""

    entity_type: String
    entity_name: String | None


@message
class DescribeClientQuotasResponseValue:
    """One quota."""

    key: String
    value: Float64


@message
class DescribeClientQuotasResponseEntry:
    """An entity and its quotas."""

    entity: tuple[DescribeClientQuotasResponseEntity, ...]
    values: tuple[DescribeClientQuotasResponseValue, ...]


@message
class DescribeClientQuotasResponse:
    """The entities that match."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None = None
    entries: tuple[DescribeClientQuotasResponseEntry, ...] | None


@message
class AlterClientQuotasRequestEntity:
    """One part of an entity; a null name is the default."""

    entity_type: String
    entity_name: String | None


@message
class AlterClientQuotasRequestOp:
    """Sets a quota, or removes it."""

    key: String
    value: Float64
    remove: Bool


@message
class AlterClientQuotasRequestEntry:
    """Changes to one entity."""

    entity: tuple[AlterClientQuotasRequestEntity, ...]
    ops: tuple[AlterClientQuotasRequestOp, ...]


@message
class AlterClientQuotasRequest:
    """Change quotas of entities."""

    entries: tuple[AlterClientQuotasRequestEntry, ...]
    validate_only: Bool


@message
class AlterClientQuotasResponseEntity:
    """One part of an entity; a null name is the default."""

    entity_type: String
    entity_name: String | None


@message
class AlterClientQuotasResponseEntry:
    """Whether this entity was changed."""

    error_code: Int16
    error_message: String | None = None
    entity: tuple[AlterClientQuotasResponseEntity, ...]


@message
class AlterClientQuotasResponse:
    """The outcome for each entity."""

    throttle_time_ms: Int32 = 0
    entries: tuple[AlterClientQuotasResponseEntry, ...]
