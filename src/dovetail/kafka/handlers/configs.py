"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources.

The settings of a topic and of a group can be changed. Those of the node come from its
settings file and can only be read, under our names and, for tools that ask so, under Kafka's
(`broker_settings.py`).
"""

from collections.abc import Collection, Iterable, Sequence

from dovetail.access import CLUSTER_NAME, Kind, Operation
from dovetail.errors import DovetailError, InvalidInput
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode, code_of
from dovetail.kafka.handlers.backend import Backend, Call
from dovetail.kafka.handlers.broker_settings import kafka_settings
from dovetail.log.share.group_settings import ALL_SETTINGS
from dovetail.log.topic_settings import CONFIG_KEYS, ConfigType, config_key

_TOPIC = 2
_BROKER = 4
_BROKER_LOGGER = 8
_CLIENT_METRICS = 16
_CONSUMER_GROUP = 32
_LISTED = {_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _CONSUMER_GROUP}

_SOURCE_TOPIC = 1
_SOURCE_NODE = 4
_SOURCE_DEFAULT = 5
_SOURCE_GROUP = 8

_SET = 0
_DELETE = 1
_APPEND = 2
_SUBTRACT = 3


async def describe_configs(
    backend: Backend, call: Call, request: m.DescribeConfigsRequest
) -> m.DescribeConfigsResponse:
    """The settings of each resource."""
    results = []
    for resource in dict.fromkeys(request.resources):
        code, message = ErrorCode.NONE, None
        configs: tuple[m.DescribeConfigsResponseConfig, ...] = ()
        try:
            configs = _describe(backend, call, resource, request)
        except DovetailError as error:
            code, message = code_of(error), str(error)
        results.append(
            m.DescribeConfigsResponseResource(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=configs,
            )
        )
    return m.DescribeConfigsResponse(results=tuple(results))


def _describe(
    backend: Backend,
    call: Call,
    resource: m.DescribeConfigsRequestResource,
    request: m.DescribeConfigsRequest,
) -> tuple[m.DescribeConfigsResponseConfig, ...]:
    wanted = resource.configuration_keys
    if resource.resource_type == _TOPIC:
        call.access.demand(Operation.DESCRIBE_CONFIGS, Kind.TOPIC, resource.resource_name)
        record = backend.log.topic(resource.resource_name)
        defaults = backend.log.defaults.as_strings()
        synonyms = request.include_synonyms
        return tuple(
            m.DescribeConfigsResponseConfig(
                name=name,
                value=value,
                read_only=False,
                config_source=_SOURCE_TOPIC if name in record.config else _SOURCE_DEFAULT,
                is_sensitive=False,
                synonyms=_synonyms(name, record.config, defaults) if synonyms else (),
                config_type=CONFIG_KEYS[name].type,
                documentation=CONFIG_KEYS[name].doc if request.include_documentation else None,
            )
            for name, value in backend.log.config(record).as_strings().items()
            if wanted is None or name in wanted
        )

    if resource.resource_type == _BROKER:
        call.access.demand(Operation.DESCRIBE_CONFIGS, Kind.CLUSTER, CLUSTER_NAME)
        if resource.resource_name not in ("", str(backend.node_id)):
            raise InvalidInput(f"there is no broker {resource.resource_name!r}")
        return _of_the_node(kafka_settings(backend) | backend.node_settings, wanted)
    if resource.resource_type == _CONSUMER_GROUP:
        call.access.demand(Operation.DESCRIBE_CONFIGS, Kind.GROUP, resource.resource_name)
        groups, group_id = backend.shares.settings, resource.resource_name
        return _of_the_node(
            groups.shown(group_id), wanted, own=groups.own(group_id), changeable=ALL_SETTINGS
        )
    raise InvalidInput(f"resource type {resource.resource_type} has no settings here")


def _of_the_node(
    settings: dict[str, str],
    wanted: tuple[str, ...] | None,
    *,
    own: Collection[str] = (),
    changeable: Collection[str] = (),
) -> tuple[m.DescribeConfigsResponseConfig, ...]:
    """Settings that stand in the node's settings file, or are a group's `own`."""
    return tuple(
        m.DescribeConfigsResponseConfig(
            name=name,
            value=value,
            read_only=name not in changeable,
            config_source=_SOURCE_GROUP if name in own else _SOURCE_NODE,
            is_sensitive=False,
            synonyms=(),
            config_type=ConfigType.STRING,
        )
        for name, value in settings.items()
        if wanted is None or name in wanted
    )


def _synonyms(
    name: str, own: dict[str, str], defaults: dict[str, str]
) -> tuple[m.DescribeConfigsResponseSynonym, ...]:
    """Where a value could come from, the one that counts first: the topic, then the broker."""
    by_default = m.DescribeConfigsResponseSynonym(
        name=CONFIG_KEYS[name].broker or name, value=defaults[name], source=_SOURCE_DEFAULT
    )
    if name not in own:
        return (by_default,)
    of_topic = m.DescribeConfigsResponseSynonym(name=name, value=own[name], source=_SOURCE_TOPIC)
    return of_topic, by_default


async def list_config_resources(
    backend: Backend, call: Call, request: m.ListConfigResourcesRequest
) -> m.ListConfigResourcesResponse:
    """Topics and brokers by name; version 0 asks for client metrics, of which there are none."""
    if not call.access.allows(Operation.DESCRIBE_CONFIGS, Kind.CLUSTER, CLUSTER_NAME):
        return m.ListConfigResourcesResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, config_resources=()
        )
    asked = set(request.resource_types) or _LISTED
    wanted = {_CLIENT_METRICS} if call.api_version == 0 else asked
    if not wanted <= _LISTED:
        return m.ListConfigResourcesResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=()
        )

    found = []
    if _CONSUMER_GROUP in wanted:
        found += [(_CONSUMER_GROUP, name) for name in backend.shares.settings.groups()]
    if _TOPIC in wanted:
        found += [(_TOPIC, record.name) for record in backend.log.topics()]
    for kind in (_BROKER, _BROKER_LOGGER):
        if kind in wanted:
            found += [(kind, str(node)) for node in backend.brokers()]
    return m.ListConfigResourcesResponse(
        error_code=ErrorCode.NONE,
        config_resources=tuple(
            m.ListConfigResourcesResponseResource(resource_name=name, resource_type=kind)
            for kind, name in found
        ),
    )


async def alter_configs(
    backend: Backend, call: Call, request: m.AlterConfigsRequest
) -> m.AlterConfigsResponse:
    """Replaces all settings of each resource."""
    responses = [
        await _alter(
            backend,
            call,
            resource,
            [(one.name, _SET, one.value) for one in resource.configs],
            from_nothing=True,
            check_only=request.validate_only,
        )
        for resource in request.resources
    ]
    return m.AlterConfigsResponse(responses=tuple(responses))


async def incremental_alter_configs(
    backend: Backend, call: Call, request: m.IncrementalAlterConfigsRequest
) -> m.IncrementalAlterConfigsResponse:
    """Changes single settings of each resource."""
    responses = [
        await _alter(
            backend,
            call,
            resource,
            [(one.name, one.config_operation, one.value) for one in resource.configs],
            from_nothing=False,
            check_only=request.validate_only,
        )
        for resource in request.resources
    ]
    return m.IncrementalAlterConfigsResponse(responses=tuple(responses))


async def _alter(
    backend: Backend,
    call: Call,
    resource: m.AlterConfigsRequestResource | m.IncrementalAlterConfigsRequestResource,
    changes: Sequence[tuple[str, int, str | None]],
    *,
    from_nothing: bool,
    check_only: bool,
) -> m.AlterConfigsResponseResource:
    code, message = ErrorCode.NONE, None
    try:
        if resource.resource_type == _CONSUMER_GROUP:
            name = resource.resource_name
            call.access.demand(Operation.ALTER_CONFIGS, Kind.GROUP, name)
            await backend.shares.settings.change(
                name, _group_changes(changes), from_nothing=from_nothing, check_only=check_only
            )
            return _altered(resource)
        if resource.resource_type == _BROKER and _takes_nothing(changes):
            call.access.demand(Operation.ALTER_CONFIGS, Kind.CLUSTER, CLUSTER_NAME)
            return _altered(resource)
        config = _changed(backend, call, resource, changes, from_nothing=from_nothing)
        await backend.log.alter_config(resource.resource_name, config, check_only=check_only)
    except _NotATopic as error:
        code, message = ErrorCode.INVALID_REQUEST, str(error)
    except InvalidInput as error:
        code, message = ErrorCode.INVALID_CONFIG, str(error)
    except DovetailError as error:
        code, message = code_of(error), str(error)
    return _altered(resource, code, message)


def _altered(
    resource: m.AlterConfigsRequestResource | m.IncrementalAlterConfigsRequestResource,
    code: ErrorCode = ErrorCode.NONE,
    message: str | None = None,
) -> m.AlterConfigsResponseResource:
    return m.AlterConfigsResponseResource(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _takes_nothing(changes: Sequence[tuple[str, int, str | None]]) -> bool:
    """Whether settings are only deleted. A broker has none of its own, so that is so already; a
    tool that ends a reassignment takes back the limits that it may have set."""
    return bool(changes) and all(operation == _DELETE for _, operation, _ in changes)


def _group_changes(changes: Iterable[tuple[str, int, str | None]]) -> dict[str, str | None]:
    """Settings of a group that are set, or are no more; none of them is a list."""
    found: dict[str, str | None] = {}
    for name, operation, value in changes:
        if operation not in (_SET, _DELETE) or (operation == _SET and value is None):
            raise InvalidInput(f"{name[:80]!r} can only be set to a value or deleted")
        found[name] = value if operation == _SET else None
    return found


class _NotATopic(InvalidInput):
    """A resource whose settings cannot be changed here."""


def _changed(
    backend: Backend,
    call: Call,
    resource: m.AlterConfigsRequestResource | m.IncrementalAlterConfigsRequestResource,
    changes: Iterable[tuple[str, int, str | None]],
    *,
    from_nothing: bool,
) -> dict[str, str]:
    """The settings of a topic with the changes made."""
    if resource.resource_type != _TOPIC:
        raise _NotATopic(
            "only topics and groups can be changed here; settings of brokers are in the node's "
            "settings file"
        )
    name = resource.resource_name
    call.access.demand(Operation.ALTER_CONFIGS, Kind.TOPIC, name)
    record = backend.log.topic(name)
    if record.internal:
        raise InvalidInput(f"topic {name!r} is internal")

    config = {} if from_nothing else dict(record.config)
    for key, operation, value in changes:
        known = config_key(key)  # Also one to delete: a slip would look as if it had worked.
        if operation == _DELETE:
            config.pop(key, None)
        elif value is None:
            raise InvalidInput(f"{key} has no value")
        elif operation == _SET:
            config[key] = value
        elif operation in (_APPEND, _SUBTRACT) and known.type is ConfigType.LIST:
            now = config.get(key, backend.log.defaults.as_strings()[key])
            config[key] = _list_changed(known.canonical(now), known.canonical(value), operation)
        else:
            raise InvalidInput(f"{key}: operation {operation} does not fit a {known.type.name}")
    return config


def _list_changed(now: str, value: str, operation: int) -> str:
    """A list with items added, or without them."""
    items = [item for item in now.split(",") if item]
    named = [item for item in value.split(",") if item]
    if operation == _APPEND:
        return ",".join(dict.fromkeys([*items, *named]))
    return ",".join(item for item in items if item not in named)
