"""ApiVersions: which requests, in which versions, this broker answers."""

from typing import Annotated

from dovetail.kafka.codec.schema import Bool, Int16, Int32, Int64, String, Wire, message


@message
class ApiVersionsRequest:
    """First question of most clients, sent before they know any version."""

    client_software_name: Annotated[String, Wire(since=3)] = ""
    client_software_version: Annotated[String, Wire(since=3)] = ""


@message
class ApiVersionsResponseApi:
    """One request type and its versions."""

    api_key: Int16
    min_version: Int16
    max_version: Int16


@message
class ApiVersionsResponseSupportedFeature:
    """A cluster feature and its levels."""

    name: String
    min_version: Int16
    max_version: Int16


@message
class ApiVersionsResponseFinalizedFeature:
    """A cluster feature in use."""

    name: String
    max_version_level: Int16
    min_version_level: Int16


@message
class ApiVersionsResponse:
    """What is answered; its header is version 0 in every version."""

    error_code: Int16
    api_keys: tuple[ApiVersionsResponseApi, ...]
    throttle_time_ms: Annotated[Int32, Wire(since=1)] = 0
    supported_features: Annotated[
        tuple[ApiVersionsResponseSupportedFeature, ...], Wire(since=3, tag=0)
    ] = ()
    finalized_features_epoch: Annotated[Int64, Wire(since=3, tag=1)] = -1
    finalized_features: Annotated[
        tuple[ApiVersionsResponseFinalizedFeature, ...], Wire(since=3, tag=2)
    ] = ()
    zk_migration_ready: Annotated[Bool, Wire(since=3, tag=3)] = False
