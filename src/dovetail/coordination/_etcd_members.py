"""The members of an etcd cluster: connections, deadlines, failover, and the meaning of errors.

Each member has its own connection. One of them is current, and all requests go to it. When a member
fails a request or cannot be reached, the client moves to the next one and returns only when that
one fails in turn. Connections are re-established by themselves, with growing pauses.

A failed request has one of three outcomes:

    not sent    the connection was not there when it was needed          next member
    not done    a member says so: it has no leader                       next member, after a pause
    unknown     no answer in time, or the connection broke meanwhile     repeatable: next member,
                                                                         else `Uncertain`

Every other answer of etcd is final and becomes one of our errors. A request is sent only over a
connection that is ready, so a refused connection is never mistaken for a lost answer.

`CoordinationDown` comes at once when no member can be reached, and at the deadline of the call when
some can be reached but none does it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any, TypeVar

import grpc
from aetcd import rpc

from dovetail.errors import (
    CoordinationDown,
    DiskFull,
    DovetailError,
    InvalidInput,
    LeaseLost,
    Throttled,
    Uncertain,
    WatchGap,
)
from dovetail.logging import get_logger

_log = get_logger("coordination")

Answer = TypeVar("Answer")

#: Pause before a request is tried again; doubled each time. An election takes about a second.
PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 1.0

#: Tells a member to refuse, at once and without doing anything, while it knows no leader, and to
#: end a watch when it loses its leader: else one that is cut off would stay silent.
_REQUIRE_LEADER = (("hasleader", "true"),)

_CHANNEL_OPTIONS = (
    # A network that drops everything is noticed on a connection in use. etcd refuses pings that
    # come more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    # A member that is back is found again within a second or two.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # What is sent again, and when, is decided here.
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # A page of a range has as many bytes as its values have.
    ("grpc.max_receive_message_length", -1),
)


class Verdict(Enum):
    """What is known of a request that failed without a final answer."""

    NOT_DONE = "not done"
    UNKNOWN = "unknown"


_REFUSALS: dict[str, type[DovetailError]] = {
    "etcdserver: requested lease not found": LeaseLost,
    "etcdserver: mvcc: required revision has been compacted": WatchGap,
    "etcdserver: mvcc: database space exceeded": DiskFull,
    "etcdserver: too many requests": Throttled,
}
_REFUSED_CODES: dict[Any, type[DovetailError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidInput,
    grpc.StatusCode.PERMISSION_DENIED: CoordinationDown,
    grpc.StatusCode.UNAUTHENTICATED: CoordinationDown,
    grpc.StatusCode.UNIMPLEMENTED: CoordinationDown,
}


def judge(code: Any, details: str) -> DovetailError | Verdict:
    """The final answer that a gRPC status stands for, or what is known without one."""
    if details == "etcdserver: no leader":
        return Verdict.NOT_DONE
    refusal = _REFUSALS.get(details) or _REFUSED_CODES.get(code)
    return Verdict.UNKNOWN if refusal is None else refusal(f"etcd answers: {details}")


class Member:
    """One etcd server."""

    def __init__(self, endpoint: str, credentials: Sequence[bytes | None] | None = None) -> None:
        self.endpoint = endpoint
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(endpoint, options=_CHANNEL_OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(
                endpoint, grpc.ssl_channel_credentials(*credentials), options=_CHANNEL_OPTIONS
            )
        self._kv: Any = rpc.KVStub(self._channel)
        self._lease: Any = rpc.LeaseStub(self._channel)
        self._watch: Any = rpc.WatchStub(self._channel)

    async def connected(self, timeout_s: float) -> bool:
        """Whether a connection is there, now or before the time is up or the attempt fails."""
        ready = grpc.ChannelConnectivity.READY
        waiting = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING)
        state = self._channel.get_state(try_to_connect=True)
        try:
            async with asyncio.timeout(timeout_s):
                while state in waiting:
                    await self._channel.wait_for_state_change(state)
                    state = self._channel.get_state(try_to_connect=True)
        except TimeoutError:
            return False
        return bool(state is ready)

    async def range(self, request: Any, timeout_s: float) -> Any:
        return await self._kv.Range(request, timeout=timeout_s, metadata=_REQUIRE_LEADER)

    async def transact(self, request: Any, timeout_s: float) -> Any:
        return await self._kv.Txn(request, timeout=timeout_s, metadata=_REQUIRE_LEADER)

    async def grant(self, request: Any, timeout_s: float) -> Any:
        return await self._lease.LeaseGrant(request, timeout=timeout_s, metadata=_REQUIRE_LEADER)

    async def revoke(self, request: Any, timeout_s: float) -> Any:
        return await self._lease.LeaseRevoke(request, timeout=timeout_s, metadata=_REQUIRE_LEADER)

    def watch(self) -> Any:
        """A stream for one watch, without a deadline."""
        return self._watch.Watch(metadata=_REQUIRE_LEADER)

    async def keep_alive(self, request: Any, timeout_s: float) -> Any:
        """One keep-alive and its answer, on a stream of its own."""
        call = self._lease.LeaseKeepAlive(timeout=timeout_s, metadata=_REQUIRE_LEADER)
        try:
            await call.write(request)
            # Not `done_writing`: if the stream ends meanwhile, it raises what no call raises.
            answer = await call.read()
        finally:
            call.cancel()
        if answer is grpc.aio.EOF:
            raise Uncertain(f"etcd member {self.endpoint} closed the stream without an answer")
        return answer

    async def close(self) -> None:
        await self._channel.close()


class Members:
    """All members; which one is current; requests that find one that answers."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        credentials: Sequence[bytes | None] | None = None,
        attempt_timeout_ms: int,
        request_timeout_ms: int,
    ) -> None:
        self._members = [Member(endpoint, credentials) for endpoint in endpoints]
        self._encrypted = credentials is not None
        self._current = 0
        self.attempt_timeout_s = attempt_timeout_ms / 1000
        self.request_timeout_s = request_timeout_ms / 1000
        self._closed = False
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._members)

    @property
    def names(self) -> str:
        """The endpoints, for messages."""
        how = " (over TLS)" if self._encrypted else ""
        return ", ".join(member.endpoint for member in self._members) + how

    @property
    def current(self) -> Member:
        """Where requests go."""
        return self._members[self._current]

    def move_on(self, failed: Member, reason: str) -> None:
        """Makes the next member current, unless another request has done that already."""
        if failed is self.current and len(self._members) > 1:
            self._current = (self._current + 1) % len(self._members)
            _log.debug("leaving etcd member", member=failed.endpoint, reason=reason)

    def check_open(self) -> None:
        if self._closed:
            raise CoordinationDown("the coordinator is closed")

    async def request(
        self,
        send: Callable[[Member, float], Awaitable[Answer]],
        *,
        what: str,
        repeatable: bool,
    ) -> Answer:
        """Sends to the current member, and on to others while that is right and time is left.

        `send` gets a member and the seconds that it has. Raises what the table above says.
        """
        self.check_open()
        self._in_flight += 1
        self._idle.clear()
        try:
            return await self._try_members(send, what=what, repeatable=repeatable)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    async def close(self) -> None:
        """Refuses new requests, waits for those under way (they have deadlines), disconnects."""
        self._closed = True
        await self._idle.wait()
        await asyncio.gather(*(member.close() for member in self._members))

    async def _try_members(
        self,
        send: Callable[[Member, float], Awaitable[Answer]],
        *,
        what: str,
        repeatable: bool,
    ) -> Answer:
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + self.request_timeout_s
        unreached, pause_s, reason = 0, PAUSE_S_MIN, "no time was given"
        while (left_s := deadline_s - now_s()) > 0:
            self.check_open()
            member = self.current
            if not await member.connected(min(left_s, self.attempt_timeout_s)):
                unreached += 1
                reason = f"{member.endpoint} cannot be reached"
                self.move_on(member, reason)
                if unreached == len(self._members):
                    raise CoordinationDown(f"{what}: cannot reach any etcd member: {self.names}")
                continue

            unreached = 0
            try:
                return await send(member, min(left_s, self.attempt_timeout_s))
            except grpc.aio.AioRpcError as error:
                verdict = judge(error.code(), error.details() or "")
                if isinstance(verdict, DovetailError):
                    raise verdict from error
                reason = f"{member.endpoint}: {error.code().name} {error.details()}"
                self.move_on(member, reason)
                if verdict is Verdict.UNKNOWN and not repeatable:
                    raise Uncertain(f"{what}: the answer of etcd was lost: {reason}") from error

            await asyncio.sleep(min(pause_s, max(0.0, deadline_s - now_s())))
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
        raise CoordinationDown(
            f"{what}: etcd did not answer within {self.request_timeout_s:g} s; last: {reason}"
        )
