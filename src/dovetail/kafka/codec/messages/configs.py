"""Configuration of topics and brokers: describe and alter."""

from typing import Annotated

from dovetail.kafka.codec.schema import Bool, Int8, Int16, Int32, String, Wire, message


@message
class DescribeConfigsRequestResource:
    """A resource and the keys wanted; null is all."""

    resource_type: Int8
    resource_name: String
    configuration_keys: tuple[String, ...] | None


@message
class DescribeConfigsRequest:
    """Settings of resources; type 2 is a topic, 4 a broker."""

    resources: tuple[DescribeConfigsRequestResource, ...]
    include_synonyms: Bool = False
    include_documentation: Annotated[Bool, Wire(since=3)] = False


@message
class DescribeConfigsResponseSynonym:
    """The same setting at another level."""

    name: String
    value: String | None
    source: Int8


@message
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


@message
class DescribeConfigsResponseResource:
    """Settings of one resource."""

    error_code: Int16
    error_message: String | None = None
    resource_type: Int8
    resource_name: String
    configs: tuple[DescribeConfigsResponseConfig, ...]


@message
class DescribeConfigsResponse:
    """Settings of each resource."""

    throttle_time_ms: Int32 = 0
    results: tuple[DescribeConfigsResponseResource, ...]


@message
class AlterConfigsRequestConfig:
    """One setting."""

    name: String
    value: String | None


@message
class AlterConfigsRequestResource:
    """All settings that the resource shall have."""

    resource_type: Int8
    resource_name: String
    configs: tuple[AlterConfigsRequestConfig, ...]


@message
class AlterConfigsRequest:
    """Replace all settings of resources."""

    resources: tuple[AlterConfigsRequestResource, ...]
    validate_only: Bool


@message
class AlterConfigsResponseResource:
    """Whether this resource was changed."""

    error_code: Int16
    error_message: String | None = None
    resource_type: Int8
    resource_name: String


@message
class AlterConfigsResponse:
    """The outcome for each resource."""

    throttle_time_ms: Int32 = 0
    responses: tuple[AlterConfigsResponseResource, ...]


@message
class IncrementalAlterConfigsRequestConfig:
    """Operation 0 sets, 1 deletes, 2 appends, 3 subtracts."""

    name: String
    config_operation: Int8
    value: String | None


@message
class IncrementalAlterConfigsRequestResource:
    """Changes to one resource."""

    resource_type: Int8
    resource_name: String
    configs: tuple[IncrementalAlterConfigsRequestConfig, ...]


@message
class IncrementalAlterConfigsRequest:
    """Change single settings of resources."""

    resources: tuple[IncrementalAlterConfigsRequestResource, ...]
    validate_only: Bool


@message
class IncrementalAlterConfigsResponse:
    """The outcome for each resource."""

    throttle_time_ms: Int32 = 0
    responses: tuple[AlterConfigsResponseResource, ...]


@message
class ListConfigResourcesRequest:
    """Resources of which types; none is all. Version 0 asks for client metrics."""

    resource_types: Annotated[tuple[Int8, ...], Wire(since=1)] = ()


@message
class ListConfigResourcesResponseResource:
    """A resource that can have settings."""

    resource_name: String
    resource_type: Annotated[Int8, Wire(since=1)] = 16


@message
class ListConfigResourcesResponse:
    """The resources by name."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    config_resources: tuple[ListConfigResourcesResponseResource, ...]
