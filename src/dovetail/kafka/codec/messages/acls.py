"""DescribeAcls, CreateAcls and DeleteAcls: what principals may do."""

from dovetail.kafka.codec.schema import Int8, Int16, Int32, String, message


@message
class AclFilter:
    """Which rules are meant; null and 1 mean any."""

    resource_type_filter: Int8
    resource_name_filter: String | None
    pattern_type_filter: Int8 = 3
    principal_filter: String | None
    host_filter: String | None
    operation: Int8
    permission_type: Int8


@message
class DescribeAclsRequest(AclFilter):
    """Which rules are wanted."""


@message
class DescribeAclsResponseAcl:
    """Who may or may not do what."""

    principal: String
    host: String
    operation: Int8
    permission_type: Int8


@message
class DescribeAclsResponseResource:
    """The rules of one resource."""

    resource_type: Int8
    resource_name: String
    pattern_type: Int8 = 3
    acls: tuple[DescribeAclsResponseAcl, ...]


@message
class DescribeAclsResponse:
    """The rules by resource."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None = None
    resources: tuple[DescribeAclsResponseResource, ...]


@message
class CreateAclsRequestCreation:
    """A rule to be."""

    resource_type: Int8
    resource_name: String
    resource_pattern_type: Int8 = 3
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


@message
class CreateAclsRequest:
    """Rules to be added."""

    creations: tuple[CreateAclsRequestCreation, ...]


@message
class CreateAclsResponseResult:
    """What became of one of them."""

    error_code: Int16
    error_message: String | None = None


@message
class CreateAclsResponse:
    """One result for each rule, in their order."""

    throttle_time_ms: Int32 = 0
    results: tuple[CreateAclsResponseResult, ...]


@message
class DeleteAclsRequest:
    """Rules to be removed."""

    filters: tuple[AclFilter, ...]


@message
class DeleteAclsResponseMatchingAcl:
    """A rule that is gone."""

    error_code: Int16
    error_message: String | None = None
    resource_type: Int8
    resource_name: String
    pattern_type: Int8 = 3
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


@message
class DeleteAclsResponseFilterResult:
    """What one filter removed."""

    error_code: Int16
    error_message: String | None = None
    matching_acls: tuple[DeleteAclsResponseMatchingAcl, ...]


@message
class DeleteAclsResponse:
    """One result for each filter, in their order."""

    throttle_time_ms: Int32 = 0
    filter_results: tuple[DeleteAclsResponseFilterResult, ...]
