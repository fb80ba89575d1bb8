"""From a frame to an answer: the table of handlers, and the two that are on the hot path.

Produce begins at once and is pipelined: its appends are in line before the next request is looked
at, and its answer waits for the disk. Fetch answers at once if the data is in memory. Everything
else is a coroutine, one at a time for a connection.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from time import perf_counter
from typing import Any

from dovetail.access import EVERYTHING, Access, Authenticator
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
    fetch,
    group_admin,
    groups,
    metadata,
    offsets,
    positions,
    produce,
    topics,
    users,
)
from dovetail.kafka.handlers.backend import Backend, Call
from dovetail.kafka.handlers.sasl import sasl
from dovetail.wire import Connection, OrderedReply, Reply

#: Largest request that carries no records. Decoded, the densest one takes 28 times its size.
FRAME_BYTES_MAX = 8 * 1024 * 1024

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
}

_SASL = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})

_API_VERSIONS = m.ApiVersionsResponse(
    error_code=ErrorCode.NONE,
    api_keys=tuple(advertised_of(api) for api in SUPPORTED.values()),
)


class KafkaDispatch:
    """The `Dispatch` of the Kafka port."""

    def __init__(self, backend: Backend, authenticator: Authenticator | None = None) -> None:
        """Without an `authenticator` everybody may do everything, and nobody logs in."""
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
                f"request {header.api_key} of {len(frame)} bytes; {FRAME_BYTES_MAX} are taken"
            )

        if header.api_key == ApiKey.API_VERSIONS:
            decode_body(header, frame, body_start)
            return self._encode(header, _API_VERSIONS, started)
        if header.api_key in _SASL:
            body = decode_body(header, frame, body_start)
            return self._later(header, sasl(self._authenticator, connection, body), started)

        access = self._access_of(header, connection)
        body = decode_body(header, frame, body_start)
        if header.api_key == ApiKey.PRODUCE:
            return produce.produce(
                self._backend,
                access,
                body,
                lambda answer: self._encode(header, answer, started),
                connection.close,
            )
        if header.api_key == ApiKey.FETCH:
            found = fetch.fetch_from_tail(self._backend, access, body)
            if found is not None:
                return self._encode(header, found, started)
            return self._later(header, fetch.fetch(self._backend, access, body), started)

        call = Call(header.api_version, header.client_id or "", connection.host, access)
        handler = _HANDLERS[header.api_key]
        if header.api_key == ApiKey.LIST_OFFSETS:  # Changes nothing, and can take long.
            return self._later(header, handler(self._backend, call, body), started)
        # To its end, also if the client goes away: cancelled in the middle, it would leave the node
        # not knowing what it has changed. Until then its bytes count.
        task = start_task(
            handler(self._backend, call, body), name="kafka/request", of=handler.__name__
        )
        return OrderedReply(self._later(header, asyncio.shield(task), started), task)

    def _access_of(self, header: RequestHeader, connection: Connection) -> Access:
        """What the client may do; asked before a body is decoded, which can cost seconds."""
        if self._authenticator is None:
            return EVERYTHING
        access = self._authenticator.access_of(connection)
        if access is None:
            raise ProtocolViolation(
                f"request {header.api_key} before the client has said who it is; log in first"
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

    async def _later(
        self, header: RequestHeader, answer: Awaitable[Any], started: float
    ) -> list[Buffer]:
        return self._encode(header, await answer, started)

    def _encode(self, header: RequestHeader, body: Any, started: float) -> list[Buffer]:
        name = SUPPORTED[header.api_key].name
        self._backend.metrics.request(name, perf_counter() - started)
        return encode_response(header, body)
