"""A coordinator on etcd, for more than one machine.

Promise: all of `protocol`, for every process that uses the same etcd and namespace. etcd does the
work; this module adds the translation, the deadlines, and an honest answer when something was lost:

- A transaction is one etcd transaction: conditions compare modification revisions.
- Reads are linearizable. A range is read in pages, all as of the revision of the first one.
- `LeaseLost` when etcd reports that a lease does not exist; `Uncertain` when a transaction was sent
  and its answer did not come; `CoordinationDown` when certainly nothing was changed, or a read or a
  lease call found no member that answers. Lease calls can be repeated without harm, so they are.
- Watches outlive connections and members (see `_etcd_watch`).

Survives: the loss, pause and return of any minority of the members, and of all of them: then calls
fail, watches wait, and both resume by themselves when a majority is back. While etcd is down its
leases do not expire, and afterwards their time starts anew; a holder counts by its own time.

Connections are encrypted if the endpoints begin with https://, and members show their certificates;
our own certificate, if set, identifies the client. There is no login by password.

Leaves to others: operating etcd (backup, compaction, space).

The client library comes with the extra `etcd`; it is loaded by `open`, not before.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from dovetail.addresses import parse_address
from dovetail.coordination._limits import check_key, check_prefix, check_transaction, check_ttl
from dovetail.coordination.protocol import (
    Change,
    KeyValue,
    LeaseId,
    Outcome,
    Revision,
    Snapshot,
    Unchanged,
    WatchEvent,
)
from dovetail.errors import CoordinationDown, InvalidInput, InvalidSetting, LeaseLost, WatchGap
from dovetail.tls_files import load_certificate

if TYPE_CHECKING:
    from dovetail.coordination._etcd_members import Members
    from dovetail.coordination._etcd_messages import Messages
    from dovetail.coordination._etcd_watch import Watch

#: Longest namespace: 256 keys of one transaction with it fit into the room that
#: `TRANSACTION_BYTES_MAX` leaves in a request of etcd.
NAMESPACE_BYTES_MAX = 256
#: How often a range begins anew because its revision was compacted between two pages.
RANGE_ATTEMPTS_MAX = 5

_HTTPS = "https://"


#: Between two attempts to reach etcd at the start: doubled up to the most.
RETRY_S_MIN = 0.5
RETRY_S_MAX = 10.0


class EtcdSection(Protocol):
    """What a file of settings says of etcd; endpoints have commas between them."""

    @property
    def endpoints(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def tls_ca(self) -> str: ...
    @property
    def tls_certificate(self) -> str: ...
    @property
    def tls_key(self) -> str: ...


#: The authority, our key and our certificate, in the order in which gRPC takes them.
Credentials = tuple[bytes | None, ...]


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """Where etcd is, and how long it is waited for."""

    #: `host:port` of members, `http://host:port` or `https://host:port`; the first one is tried
    #: first.
    endpoints: tuple[str, ...]
    #: What all keys begin with in etcd; ends with a slash.
    namespace: str = "/dovetail/"
    #: How long one member has for one request. Short against a lease, so that a holder whose
    #: member is paused still reaches another one in time; long against a slow disk.
    attempt_timeout_ms: int = 1_500
    #: How long a call goes on with further members. An election takes one to two seconds.
    request_timeout_ms: int = 5_000
    #: After each such time without a message, a watch looks whether its member is there.
    watch_silence_ms: int = 1_000
    #: For https, files (PEM): the authority of the members, and what we show, if they want it.
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""

    @classmethod
    def of(cls, section: EtcdSection) -> "EtcdSettings":
        """As a file of settings has them. Raises `InvalidSetting`."""
        settings = cls(
            tuple(part.strip() for part in section.endpoints.split(",") if part.strip()),
            namespace=section.namespace,
            tls_ca=section.tls_ca,
            tls_certificate=section.tls_certificate,
            tls_key=section.tls_key,
        )
        settings.check()
        return settings

    @property
    def addresses(self) -> tuple[str, ...]:
        """`host:port` of each member. Raises `InvalidSetting`."""
        return tuple(_address(endpoint) for endpoint in self.endpoints)

    @property
    def encrypted(self) -> bool:
        """Whether it is TLS."""
        return any(endpoint.startswith(_HTTPS) for endpoint in self.endpoints)

    def tls(self) -> ssl.SSLContext | None:
        """For requests over HTTP; None without TLS. Raises `InvalidSetting`."""
        if not self.encrypted:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
            if self.tls_certificate:
                load_certificate(context, self.tls_certificate, self.tls_key)
        except OSError as error:
            raise InvalidSetting(
                "cannot use the files of coordination.tls_ca, tls_certificate and tls_key: "
                f"{error.strerror or error}"
            ) from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    def credentials(self) -> Credentials | None:
        """What the files hold; None without TLS. Raises `InvalidSetting`."""
        if self.tls() is None:
            return None
        files = (self.tls_ca, self.tls_key, self.tls_certificate)
        return tuple(Path(file).read_bytes() if file else None for file in files)

    def check(self) -> None:
        """Raises `InvalidSetting` for a value that cannot work."""
        if not self.endpoints:
            raise InvalidSetting("etcd needs at least one endpoint, such as 127.0.0.1:2379")
        for endpoint in self.endpoints:
            _address(endpoint)
            if self.encrypted != endpoint.startswith(_HTTPS):
                raise InvalidSetting("write https:// before all etcd endpoints, or before none")

        if self.encrypted != bool(self.tls_ca):
            raise InvalidSetting(
                "etcd over https needs coordination.tls_ca, the authority of its certificates; "
                "without https, leave it empty"
            )
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise InvalidSetting(
                "set both coordination.tls_certificate and coordination.tls_key, or neither"
            )

        if not self.namespace.endswith("/"):
            raise InvalidSetting(f"the etcd namespace {self.namespace!r} must end with a slash")
        if len(self.namespace.encode()) > NAMESPACE_BYTES_MAX:
            raise InvalidSetting(f"the etcd namespace has at most {NAMESPACE_BYTES_MAX} bytes")
        if self.attempt_timeout_ms <= 0 or self.watch_silence_ms <= 0:
            raise InvalidSetting("the times of the etcd client must be above 0 ms")
        if self.request_timeout_ms < self.attempt_timeout_ms:
            raise InvalidSetting(
                f"the etcd request timeout ({self.request_timeout_ms} ms) must not be shorter "
                f"than that of one attempt ({self.attempt_timeout_ms} ms)"
            )


class EtcdCoordinator:
    """The `Coordinator` of a cluster; made by `open`, an async context manager."""

    def __init__(self, members: "Members", messages: "Messages", settings: EtcdSettings) -> None:
        self._members = members
        self._messages = messages
        self._settings = settings
        self._watches: set[Watch] = set()

    @classmethod
    async def open(cls, settings: EtcdSettings) -> "EtcdCoordinator":
        """Connects, and reads once to know that etcd answers.

        Raises `InvalidSetting` for settings that cannot work or when the client library is not
        installed, `CoordinationDown` if etcd does not answer.
        """
        settings.check()
        try:
            from dovetail.coordination._etcd_members import Members
            from dovetail.coordination._etcd_messages import Messages
        except ModuleNotFoundError as error:
            raise InvalidSetting(
                f"coordination on etcd needs the module {error.name!r}: "
                "install dovetail with its extra `etcd` (pip install 'dovetailmq[etcd]')"
            ) from error

        members = Members(
            settings.addresses,
            credentials=settings.credentials(),
            attempt_timeout_ms=settings.attempt_timeout_ms,
            request_timeout_ms=settings.request_timeout_ms,
        )
        coordinator = cls(members, Messages(settings.namespace), settings)
        try:
            await coordinator._read(coordinator._messages.revision(), what="opening etcd")
        except BaseException:
            await members.close()
            raise
        return coordinator

    @classmethod
    async def open_patiently(
        cls, settings: EtcdSettings, on_down: Callable[[CoordinationDown, float], None]
    ) -> "EtcdCoordinator":
        """As `open`, but waits until etcd answers: after a power cut it may start later than we.

        `on_down` gets each failure, and the seconds until the next attempt.
        """
        delay_s = RETRY_S_MIN
        while True:
            try:
                return await cls.open(settings)
            except CoordinationDown as error:
                on_down(error, delay_s)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_S_MAX)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def get(self, key: str) -> KeyValue | None:
        check_key(key)
        answer = await self._read(self._messages.get(key), what=f"get of {key!r}")
        return self._messages.item(answer.kvs[0]) if answer.kvs else None

    async def range(self, prefix: str) -> Snapshot:
        check_prefix(prefix)
        for _ in range(RANGE_ATTEMPTS_MAX):
            try:
                return await self._read_pages(prefix)
            except WatchGap:
                continue
        raise CoordinationDown(
            f"range of {prefix!r}: etcd is compacted faster than it can be read, "
            f"tried {RANGE_ATTEMPTS_MAX} times"
        )

    async def transact(
        self, changes: Sequence[Change], *, conditions: Sequence[Unchanged] = ()
    ) -> Outcome:
        """Applies all changes if all conditions hold, else none; by a majority of the members.

        Raises, beside what the protocol says, `DiskFull` when etcd's quota is used up and
        `Throttled` when it has too many requests (nothing stored in both cases).
        """
        changes, conditions = tuple(changes), tuple(conditions)
        check_transaction(changes, conditions)
        request = self._messages.transaction(changes, conditions)
        answer: Any = await self._members.request(
            lambda member, timeout_s: member.transact(request, timeout_s),
            what=_describe(changes),
            repeatable=not changes,
        )
        return Outcome(applied=answer.succeeded, revision=Revision(answer.header.revision))

    @asynccontextmanager
    async def watch(
        self, prefix: str, *, after: Revision
    ) -> AsyncIterator[AsyncIterator[tuple[WatchEvent, ...]]]:
        """Changes below `prefix` with a revision greater than `after`, one tuple a revision.

        Entering it raises `CoordinationDown` if no member acknowledges the watch.
        """
        from dovetail.coordination._etcd_watch import Watch

        self._members.check_open()
        check_prefix(prefix)
        watch = Watch(
            self._members,
            self._messages,
            prefix,
            after=after,
            silence_ms=self._settings.watch_silence_ms,
        )
        self._watches.add(watch)
        try:
            await watch.open()
            yield watch
        finally:
            self._watches.discard(watch)
            await watch.end()

    async def grant(self, *, ttl_ms: int) -> LeaseId:
        """A new lease that ends `ttl_ms` from now, rounded up to seconds, unless kept alive.

        etcd makes it longer where its election timeout asks for that (two seconds by default).
        A grant whose answer is lost leaves a lease behind that nobody uses; it ends by itself.
        """
        check_ttl(ttl_ms)
        request = self._messages.grant(ttl_ms=ttl_ms)
        answer: Any = await self._members.request(
            lambda member, timeout_s: member.grant(request, timeout_s),
            what="grant of a lease",
            repeatable=True,
        )
        return LeaseId(answer.ID)

    async def keep_alive(self, lease: LeaseId) -> None:
        request = self._messages.keep_alive(lease)
        answer: Any = await self._members.request(
            lambda member, timeout_s: member.keep_alive(request, timeout_s),
            what=f"keep-alive of lease {lease}",
            repeatable=True,
        )
        if answer.TTL <= 0:
            raise LeaseLost(f"lease {lease} cannot be kept alive: it has ended")

    async def revoke(self, lease: LeaseId) -> None:
        request = self._messages.revoke(lease)
        try:
            await self._members.request(
                lambda member, timeout_s: member.revoke(request, timeout_s),
                what=f"revocation of lease {lease}",
                repeatable=True,
            )
        except LeaseLost:
            return

    async def close(self) -> None:
        """Ends the watches, waits for the answers under way, disconnects; leases live on."""
        for watch in tuple(self._watches):
            watch.take_out("the coordinator is closed")
            await watch.end()
        await self._members.close()

    async def _read(self, request: Any, *, what: str) -> Any:
        return await self._members.request(
            lambda member, timeout_s: member.range(request, timeout_s),
            what=what,
            repeatable=True,
        )

    async def _read_pages(self, prefix: str) -> Snapshot:
        items: list[KeyValue] = []
        revision: Revision | None = None
        behind: bytes | None = None
        while True:
            request = self._messages.page(prefix, behind=behind, revision=revision)
            answer = await self._read(request, what=f"range of {prefix!r}")
            if revision is None:
                revision = Revision(answer.header.revision)
            items.extend(map(self._messages.item, answer.kvs))
            if not answer.more:
                return Snapshot(revision, tuple(items))
            behind = answer.kvs[-1].key


def _address(endpoint: str) -> str:
    """`host:port` as gRPC takes it. Raises `InvalidSetting` if it is something else."""
    try:
        given = endpoint.removeprefix("http://").removeprefix(_HTTPS).rstrip("/")
        return str(parse_address(given, what="etcd endpoint"))
    except InvalidInput as error:
        raise InvalidSetting(str(error)) from error


def _describe(changes: Sequence[Change]) -> str:
    """What a transaction is about, for messages."""
    if not changes:
        return "transaction without changes"
    more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
    return f"transaction on {changes[0].key!r}{more}"
