"""The section `coordination`: membership, owners and terms; here, beside this process, in etcd."""

from typing import Literal

from dovetail.settings.kinds import MINUTE_MS, SECOND_MS, DurationMs, Section, setting


class CoordinationSettings(Section):
    """Who is alive and who owns what."""

    kind: Literal["embedded", "etcd", "shared"] = setting(
        "embedded",
        "'embedded': in this process. 'etcd': for a cluster. 'shared': in another node of this "
        "machine, as `dovetail up --brokers` sets it.",
    )
    share: bool = setting(
        False,
        "Whether other nodes of this machine use the embedded coordination of this one, as "
        "`dovetail up --brokers` sets it.",
    )
    shared_at: str = setting(
        "", "For 'shared': address (host:port) of the node that has the coordination."
    )
    endpoints: str = setting(
        "127.0.0.1:2379",
        "Addresses of etcd's members, host:port or https://host:port, separated by commas.",
        min_length=1,
    )
    namespace: str = setting(
        "/dovetail/",
        "Prefix of all keys, so that several clusters can share one etcd.",
        pattern=r"^/([A-Za-z0-9._-]+/)*$",
    )
    # etcd counts whole seconds and no fewer than two; a minute hides a dead node for too long.
    lease_ms: DurationMs = setting(
        3 * SECOND_MS,
        "A node that does not renew its lease for this long counts as dead.",
        ge=2 * SECOND_MS,
        le=MINUTE_MS,
    )
    tls_ca: str = setting("", "For https: file with the CA of etcd's certificates (PEM).")
    tls_certificate: str = setting(
        "", "File with the client certificate (PEM), if etcd requires one."
    )
    tls_key: str = setting("", "File with the key of that certificate (PEM).")

    @property
    def alone(self) -> bool:
        """Whether this node has no others beside it."""
        return self.kind == "embedded" and not self.share
