"""From a frame to an answer: the table of handlers, and the two on the hot path.

Produce starts at once and is pipelined: its appends are queued before the next request is handled,
and its answer waits for the disk. Fetch answers at once if the data is in memory. All other
requests are coroutines, one at a time for a connection.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

from dovetail.access import EVERYTHING, Access, Authenticator, quotas
from dovetail.background import start_task
from dovetail.buffers import Buffer
from dovetail.errors import ProtocolViolation
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.apis import SUPPORTED, ApiKey, advertised_of
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.codec.frames import answers, decode_body, encode_response, refuse
from dovetail.kafka.codec.headers import RequestHeader, decode_header
from dovetail.kafka.handlers import (
    acls,
    configs,
    consumer_groups,
    features,
    fetch,
    group_admin,
    groups,
    log_dirs,
    metadata,
    offsets,
    positions,
    produce,
    reassignment,
    topics,
    transaction_admin,
    transactions,
    users,
)
from dovetail.kafka.handlers import quotas as client_quotas
from dovetail.kafka.handlers.backend import Backend, Call
from dovetail.kafka.handlers.sasl import sasl
from dovetail.kafka.handlers.share import acknowledge as share_acknowledge
from dovetail.kafka.handlers.share import fetch as share_fetch
from dovetail.kafka.handlers.share import groups as share_groups
from dovetail.kafka.handlers.share import offsets as share_offsets
from dovetail.wire import Connection, OrderedReply, Reply

#: Largest request that carries no records. Decoded, the densest one takes 28 times its size.
FRAME_BYTES_MAX = 8 * 1024 * 1024

#: How much of a client's id is kept for lists; ids are short.
NAME_CHARACTERS_MAX = 100

Handler = Callable[[Backend, Call, Any], Coroutine[Any, Any, Any]]

_HANDLERS: dict[int, Handler] = {
    ApiKey.LIST_OFFSETS: offsets.list_offsets,
    ApiKey.METADATA: metadata.metadata,
    ApiKey.OFFSET_COMMIT: positions.offset_commit,
    ApiKey.OFFSET_FETCH: positions.offset_fetch,
    ApiKey.FIND_COORDINATOR: metadata.find_coordinator,
    ApiKey.JOIN_GROUP: groups.join_group,
    ApiKey.HEARTBEAT: groups.heartbeat,
    ApiKey.LEAVE_GROUP: groups.leave_group,
    ApiKey.SYNC_GROUP: groups.sync_group,
    ApiKey.DESCRIBE_GROUPS: group_admin.describe_groups,
    ApiKey.LIST_GROUPS: group_admin.list_groups,
    ApiKey.CREATE_TOPICS: topics.create_topics,
    ApiKey.DELETE_TOPICS: topics.delete_topics,
    ApiKey.DELETE_RECORDS: offsets.delete_records,
    ApiKey.INIT_PRODUCER_ID: produce.init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.offset_for_leader_epoch,
    ApiKey.DESCRIBE_CONFIGS: configs.describe_configs,
    ApiKey.ALTER_CONFIGS: configs.alter_configs,
    ApiKey.CREATE_PARTITIONS: topics.create_partitions,
    ApiKey.DELETE_GROUPS: group_admin.delete_groups,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
    ApiKey.OFFSET_DELETE: positions.offset_delete,
    ApiKey.DESCRIBE_CLUSTER: metadata.describe_cluster,
    ApiKey.DESCRIBE_ACLS: acls.describe_acls,
    ApiKey.CREATE_ACLS: acls.create_acls,
    ApiKey.DELETE_ACLS: acls.delete_acls,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: users.describe_users,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: users.alter_users,
    ApiKey.ADD_PARTITIONS_TO_TXN: transactions.add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: transactions.add_offsets,
    ApiKey.END_TXN: transactions.end_transaction,
    ApiKey.TXN_OFFSET_COMMIT: transactions.commit_offsets,
    ApiKey.WRITE_TXN_MARKERS: transaction_admin.write_markers,
    ApiKey.DESCRIBE_PRODUCERS: transaction_admin.describe_producers,
    ApiKey.DESCRIBE_TRANSACTIONS: transaction_admin.describe_transactions,
    ApiKey.LIST_TRANSACTIONS: transaction_admin.list_transactions,
    ApiKey.DESCRIBE_LOG_DIRS: log_dirs.describe_log_dirs,
    ApiKey.ELECT_LEADERS: reassignment.elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: reassignment.alter_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: reassignment.list_reassignments,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: client_quotas.describe_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: client_quotas.alter_quotas,
    ApiKey.DESCRIBE_QUORUM: features.describe_quorum,
    ApiKey.UPDATE_FEATURES: features.update_features,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_groups.heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: consumer_groups.describe,
    ApiKey.LIST_CONFIG_RESOURCES: configs.list_config_resources,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: metadata.describe_topic_partitions,
    ApiKey.SHARE_GROUP_HEARTBEAT: share_groups.heartbeat,
    ApiKey.SHARE_GROUP_DESCRIBE: share_groups.describe,
    ApiKey.SHARE_FETCH: share_fetch.fetch,
    ApiKey.SHARE_ACKNOWLEDGE: share_acknowledge.acknowledge,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: share_offsets.describe_offsets,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: share_offsets.alter_offsets,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: share_offsets.delete_offsets,
}

_SASL = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})

_API_VERSIONS = m.ApiVersionsResponse(
    error_code=ErrorCode.NONE,
    api_keys=tuple(advertised_of(api) for api in SUPPORTED.values()),
    supported_features=tuple(
        m.ApiVersionsResponseSupportedFeature(name=name, min_version=low, max_version=high)
        for name, (low, high) in features.FEATURES.items()
    ),
    finalized_features_epoch=0,
    finalized_features=tuple(
        m.ApiVersionsResponseFinalizedFeature(
            name=name, max_version_level=high, min_version_level=high
        )
        for name, (_, high) in features.FEATURES.items()
    ),
)

#: The user of quotas where nobody logs in; Kafka's name for it.
_ANONYMOUS = "ANONYMOUS"


class _Asked(NamedTuple):
    """A request that is being answered."""

    header: RequestHeader
    started: float
    connection: Connection
    access: Access = EVERYTHING


class KafkaDispatch:
    """The `Dispatch` of the Kafka port."""

    def __init__(self, backend: Backend, authenticator: Authenticator | None = None) -> None:
        """Without an `authenticator` every client may do everything, and none logs in."""
        self._backend = backend
        self._authenticator = authenticator

    def __call__(self, connection: Connection, frame: memoryview) -> Reply:
        started = perf_counter()
        header, body_start = decode_header(frame)
        if not answers(header):
            if header.api_key != ApiKey.API_VERSIONS:
                self._access_of(header, connection)
            return self._refuse(header, frame, body_start)
        if header.api_key != ApiKey.PRODUCE and len(frame) > FRAME_BYTES_MAX:
            raise ProtocolViolation(
                f"request {header.api_key} of {len(frame)} bytes is above the limit of "
                f"{FRAME_BYTES_MAX}"
            )

        if header.api_key == ApiKey.API_VERSIONS:
            _introduce(connection, header, decode_body(header, frame, body_start))
            return self._encode(_Asked(header, started, connection), _API_VERSIONS)
        if header.api_key in _SASL:
            body = decode_body(header, frame, body_start)
            login = partial(sasl, self._authenticator, connection, body)
            return self._later(_Asked(header, started, connection), login)

        access = self._access_of(header, connection)
        body = decode_body(header, frame, body_start)
        asked = _Asked(header, started, connection, access)
        if not self._backend.quotas.active:
            return self._begin(asked, body)
        self._count(asked, quotas.PRODUCED, len(frame) if header.api_key == ApiKey.PRODUCE else 0)
        self._count(asked, quotas.MUTATED, _partitions_changed(body))
        reply = self._begin(asked, body)
        self._count(asked, quotas.BUSY, (perf_counter() - started) * 1000)
        self._hold(asked)
        return reply

    def _begin(self, asked: _Asked, body: Any) -> Reply:
        header, _, connection, access = asked
        client_id = header.client_id or ""
        if not connection.client and client_id:
            # Not every client introduces itself.
            connection.client = client_id[:NAME_CHARACTERS_MAX]
        call = Call(header.api_version, client_id, connection.host, access, connection.on_lost)
        if header.api_key == ApiKey.PRODUCE:
            connection.produces = True
            return produce.produce(
                self._backend,
                call,
                body,
                lambda answer: self._encode(asked, answer),
                connection.close,
            )
        if header.api_key == ApiKey.FETCH:
            connection.fetches = True
            found = fetch.fetch(self._backend, call, body)
            if isinstance(found, m.FetchResponse):
                return self._encode(asked, found)
            return self._later(asked, found)

        handler = _HANDLERS[header.api_key]
        # Can take long. The first changes nothing; the other must not acquire for nobody.
        if header.api_key in (ApiKey.LIST_OFFSETS, ApiKey.SHARE_FETCH):
            return self._later(asked, partial(handler, self._backend, call, body))
        # To its end, also if the client goes away: cancelled in the middle, it would leave the node
        # not knowing what it has changed. Until then its bytes count.
        task = start_task(
            handler(self._backend, call, body), name="kafka/request", of=handler.__name__
        )
        return OrderedReply(self._later(asked, partial(asyncio.shield, task)), task)

    def _access_of(self, header: RequestHeader, connection: Connection) -> Access:
        """What the client may do; asked before a body is decoded, which can cost seconds."""
        if self._authenticator is None:
            return EVERYTHING
        access = self._authenticator.access_of(connection)
        if access is None:
            raise ProtocolViolation(
                f"the client sent request {header.api_key} before it logged in; log in first"
            )
        return access

    def _refuse(
        self, header: RequestHeader, frame: memoryview, body_start: int
    ) -> list[Buffer] | None:
        api = SUPPORTED.get(header.api_key)
        self._backend.metrics.error(api.name if api else "unknown", "UNSUPPORTED_VERSION")
        refusal = refuse(header, frame, body_start)
        if refusal is None:
            raise ProtocolViolation(
                f"request {header.api_key} version {header.api_version} is not supported"
            )
        return refusal

    async def _later(self, asked: _Asked, begin: Callable[[], Awaitable[Any]]) -> list[Buffer]:
        # Begun in here: a client that goes away at once leaves nothing that was never awaited.
        return self._encode(asked, await begin())

    def _encode(self, asked: _Asked, body: Any) -> list[Buffer]:
        header = asked.header
        name = SUPPORTED[header.api_key].name
        self._backend.metrics.request(name, perf_counter() - asked.started)
        if self._backend.quotas.active:
            body = self._throttled(asked, body)
        return encode_response(header, body)

    # Quotas (`access/quotas.py`)

    def _count(self, asked: _Asked, quota: str, amount: float) -> None:
        if amount:
            user, client = asked.access.principal or _ANONYMOUS, asked.header.client_id or ""
            self._backend.quotas.note(quota, user, client, amount)

    def _throttled(self, asked: _Asked, body: Any) -> Any:
        """The answer with the time that the client has to wait, which is seen to here."""
        if isinstance(body, m.FetchResponse | m.ShareFetchResponse):
            self._count(asked, quotas.FETCHED, _bytes_of(body))
        if not hasattr(body, "throttle_time_ms") or asked.header.api_key == ApiKey.API_VERSIONS:
            return body
        wait_ms = self._hold(asked)
        return replace(body, throttle_time_ms=wait_ms) if wait_ms else body

    def _hold(self, asked: _Asked) -> int:
        """Keeps the client from its next request until it is within its quota again."""
        user, client = asked.access.principal or _ANONYMOUS, asked.header.client_id or ""
        wait_ms = self._backend.quotas.wait_ms(user, client)
        if wait_ms:
            asked.connection.hold(wait_ms)
        return wait_ms


def _introduce(connection: Connection, header: RequestHeader, body: Any) -> None:
    """Notes what the client says of itself with its first request."""
    name, version = body.client_software_name, body.client_software_version
    connection.client = (header.client_id or "")[:NAME_CHARACTERS_MAX]
    connection.software = f"{name or ''} {version or ''}".strip()[:NAME_CHARACTERS_MAX]


def _bytes_of(body: m.FetchResponse | m.ShareFetchResponse) -> int:
    return sum(
        sum(map(len, partition.records or ()))
        for topic in body.responses
        for partition in topic.partitions
    )


def _partitions_changed(body: Any) -> int:
    """How many partitions a request creates or deletes; a topic of unknown size counts as one."""
    if isinstance(body, m.CreateTopicsRequest):
        return sum(max(topic.num_partitions, 1) for topic in body.topics)
    if isinstance(body, m.DeleteTopicsRequest):
        return len(body.topics) + len(body.topic_names)
    return len(body.topics) if isinstance(body, m.CreatePartitionsRequest) else 0
