"""Configuration of topics and brokers: describe and alter."""

from dataclasses import dataclass
from typing import Annotated

from dovetail.kafka.codec.schema import Bool, Int8, Int16, Int32, String, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsRequestResource:
    """A resource and the keys wanted; null is all."""

    resource_type: Int8
    resource_name: String
    configuration_keys: tuple[String, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsRequest:
    """Settings of resources; type 2 is a topic, 4 a broker."""

    resources: tuple[DescribeConfigsRequestResource, ...]
    include_synonyms: Bool = False
    include_documentation: Annotated[Bool, Wire(since=3)] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResponseSynonym:
    """The same setting at another level."""

    name: String
    value: String | None
    source: Int8


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResponseConfig:
    """One setting, its value and where it comes from."""

    name: String
    value: String | None
    read_only: Bool
    config_source: Int8 = -1
    is_sensitive: Bool
    synonyms: tuple[DescribeConfigsResponseSynonym, ...]
    config_type: Annotated[Int8, Wire(since=3)] = 0
    documentation: Annotated[String | None, Wire(since=3)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResponseResource:
    """Settings of one resource."""

    error_code: Int16
    error_message: String | None = None
    resource_type: Int8
    resource_name: String
    configs: tuple[DescribeConfigsResponseConfig, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResponse:
    """Settings of each resource."""

    throttle_time_ms: Int32 = 0
    results: tuple[DescribeConfigsResponseResource, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsRequestConfig:
    """One setting."""

    name: String
    value: String | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsRequestResource:
    """All settings that the resource shall have."""

    resource_type: Int8
    resource_name: String
    configs: tuple[AlterConfigsRequestConfig, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsRequest:
    """Replace all settings of resources."""

    resources: tuple[AlterConfigsRequestResource, ...]
    validate_only: Bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResponseResource:
    """Whether this resource was changed."""

    error_code: Int16
    error_message: String | None = None
    resource_type: Int8
    resource_name: String


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResponse:
    """The outcome for each resource."""

    throttle_time_ms: Int32 = 0
    responses: tuple[AlterConfigsResponseResource, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigsRequestConfig:
    """Operation 0 sets, 1 deletes, 2 appends, 3 subtracts."""

    name: String
    config_operation: Int8
    value: String | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigsRequestResource:
    """Changes to one resource."""

    resource_type: Int8
    resource_name: String
    configs: tuple[IncrementalAlterConfigsRequestConfig, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigsRequest:
    """Change single settings of resources."""

    resources: tuple[IncrementalAlterConfigsRequestResource, ...]
    validate_only: Bool


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigsResponse:
    """The outcome for each resource."""

    throttle_time_ms: Int32 = 0
    responses: tuple[AlterConfigsResponseResource, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListConfigResourcesRequest:
    """Resources of which types; none is all. Version 0 asks for client metrics."""

    resource_types: Annotated[tuple[Int8, ...], Wire(since=1)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListConfigResourcesResponseResource:
    """A resource that can have settings."""

    resource_name: String
    resource_type: Annotated[Int8, Wire(since=1)] = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ListConfigResourcesResponse:
    """The resources by name."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    config_resources: tuple[ListConfigResourcesResponseResource, ...]
