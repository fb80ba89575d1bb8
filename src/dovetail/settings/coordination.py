"""The section `coordination`: who is alive and who owns what, in this process or in etcd."""

from typing import Literal

from pydantic import Field

from dovetail.settings.kinds import DurationMs, Section

_SECOND_MS = 1000
_MINUTE_MS = 60_000


class CoordinationSettings(Section):
    """Who is alive and who owns what."""

    kind: Literal["embedded", "etcd"] = Field(
        default="embedded",
        description="'embedded': in this process, for one node. 'etcd': for a cluster.",
    )
    endpoints: str = Field(
        default="127.0.0.1:2379",
        min_length=1,
        description="Addresses of etcd's members, host:port or https://host:port, with commas "
        "between them.",
    )
    namespace: str = Field(
        default="/dovetail/",
        pattern=r"^/([A-Za-z0-9._-]+/)*$",
        description="Prefix of all keys, so that several clusters can share one etcd.",
    )
    # etcd counts whole seconds and no fewer than two; a minute hides a dead node for too long.
    lease_ms: DurationMs = Field(
        default=3 * _SECOND_MS,
        ge=2 * _SECOND_MS,
        le=_MINUTE_MS,
        description="A node that is not heard of for this long is taken for dead.",
    )
    tls_ca: str = Field(
        default="",
        description="File with the authority of the certificates of etcd's members (PEM); for "
        "https.",
    )
    tls_certificate: str = Field(
        default="", description="File with the certificate to show (PEM), if etcd wants one."
    )
    tls_key: str = Field(default="", description="File with the key of that certificate (PEM).")
