"""Private requests and answers as bytes: whole, truncated, changed, and pure noise."""

import asyncio
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.storage.remote.storage_door import HeldNode

from dovetail import errors
from dovetail.buffers import Buffer
from dovetail.errors import DovetailError, Fenced, ProtocolViolation, Unavailable
from dovetail.kafka.codec.headers import RequestHeader, encode_header
from dovetail.storage import EntryId, LedgerId, Term
from dovetail.storage import calls as private
from dovetail.storage.calls import PrivateKey
from dovetail.storage.held import Span
from dovetail.storage.service import StorageService, is_private
from dovetail.wire import ByteBudget, Connection, Limits, PipelinedReply
from dovetail.wire.connection import SCRATCH_BYTES

GOOD = private.AppendHead(LedgerId(1), EntryId(1), Term(1), EntryId(-1), 1)

ids = st.integers(0, 2**63 - 1)
ids_or_none = st.integers(-1, 2**63 - 1)
payloads = st.lists(st.binary(max_size=50), min_size=1, max_size=20)

requests: dict[PrivateKey, st.SearchStrategy[private.PrivateRequest]] = {
    PrivateKey.HELLO: st.builds(private.Hello, st.integers(0, 2**31 - 1)),
    PrivateKey.FENCE: st.builds(private.FenceLedger, ids, ids),
    PrivateKey.READ: st.builds(
        private.ReadEntries, ids, ids, ids_or_none, st.integers(0, 2**31 - 1)
    ),
    PrivateKey.RECOVERY_READ: st.builds(private.ReadForRecovery, ids, ids, ids),
    PrivateKey.DELETE: st.builds(private.DeleteLedger, ids),
    PrivateKey.LEDGERS: st.just(private.ListLedgers()),
    PrivateKey.HELD: st.builds(private.AskHeld, ids, ids, ids_or_none),
}
answers: st.SearchStrategy[private.PrivateAnswer] = st.one_of(
    st.builds(private.Welcome, st.integers(0, 2**31 - 1), st.text(max_size=255)),
    st.builds(
        private.AppendOutcomes,
        st.lists(st.none() | st.builds(private.Failure, st.text(), st.text()), max_size=20),
    ),
    st.builds(private.LedgerFenced, ids_or_none, ids_or_none, ids),
    st.just(private.LedgerDeleted()),
    st.builds(private.LedgersListed, st.lists(ids)),
    st.builds(private.HeldTold, st.lists(st.builds(Span, ids, ids), max_size=20), ids_or_none),
)
answer_kinds = sorted(private.PrivateAnswer.__subclasses__(), key=lambda kind: kind.__name__)


@st.composite
def keyed_requests(
    draw: st.DrawFn,
) -> tuple[PrivateKey, private.PrivateRequest, list[bytes]]:
    key = draw(st.sampled_from(sorted(PrivateKey)))
    if key is not PrivateKey.APPEND:
        return key, draw(requests[key]), []
    contents = draw(payloads)
    heads = [
        draw(st.builds(private.AppendHead, ids, ids, ids, ids_or_none, st.just(len(content))))
        for content in contents
    ]
    return key, private.Appends(heads), contents


def joined(buffers: list[Buffer]) -> memoryview:
    return memoryview(b"".join(buffers))


@given(keyed_requests())
def test_a_request_is_read_as_it_was_written(
    request: tuple[PrivateKey, private.PrivateRequest, list[bytes]],
) -> None:
    """R3: every message, with its payloads behind it."""
    key, message, contents = request
    data = joined(private.encode_request(message, contents))
    found, rest = private.decode_request(private.REQUESTS[key], data)
    assert found == message
    if isinstance(found, private.Appends):
        lengths = [head.payload_bytes for head in found.heads]
        assert private.cut_payloads(rest, lengths) == contents
    else:
        assert not rest


@given(answers, st.data())
def test_an_answer_is_read_as_it_was_written_and_not_when_cut(
    answer: private.PrivateAnswer, data: st.DataObject
) -> None:
    """R3: every answer; any part of it is none."""
    whole = joined(private.encode_answer(7, answer))
    assert int.from_bytes(whole[:4], "big") == len(whole) - 4
    assert int.from_bytes(whole[4:8], "big") == 7
    assert private.decode_answer(type(answer), whole[8:]) == (answer, memoryview(b""))
    cut = whole[8 : data.draw(st.integers(8, len(whole) - 1))]
    with pytest.raises(ProtocolViolation):
        private.decode_answer(type(answer), cut)


@given(st.binary(max_size=200))
def test_noise_is_refused_and_nothing_else_happens(noise: bytes) -> None:
    """R3: a decoder gives a message, an error that travelled, or a violation."""
    framed = memoryview(len(noise).to_bytes(4, "big") + noise)
    for data in (memoryview(noise), framed):
        for kind in private.REQUESTS.values():
            try:
                private.decode_request(kind, data)
            except ProtocolViolation:
                pass
        for answer_kind in answer_kinds:
            try:
                private.decode_answer(answer_kind, data)
            except ProtocolViolation:
                pass


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


class _Deaf:
    """An observer of a connection that never carries anything."""

    def opened(self, connection: Connection) -> None: ...

    def closed(self, connection: Connection) -> None: ...

    def violation(self, connection: Connection, error: ProtocolViolation) -> None: ...

    def failed(self, connection: Connection, error: Exception) -> None: ...

    def moved(self, bytes_in: int, bytes_out: int) -> None: ...


async def handled(frame: bytes) -> int:
    """Gives a frame to a service; returns how many appends it began."""
    node = HeldNode()
    service = StorageService(node, identity="storage-1")
    limits = Limits(frame_bytes_max=1, frame_read_ms=1, idle_ms=1, connections_max=1)
    scratch = memoryview(bytearray(SCRATCH_BYTES))
    connection = Connection(service, limits, ByteBudget(1), _Deaf(), scratch)
    try:
        reply = service(connection, memoryview(frame))
    except ProtocolViolation:
        assert not node.held, "a frame that does not check had an effect"
        return 0
    if isinstance(reply, PipelinedReply):
        reply.future.cancel()
        await asyncio.gather(reply.future, return_exceptions=True)
    return len(node.held)


@settings(deadline=None)
@given(keyed_requests(), st.data())
def test_a_service_takes_whole_frames_and_refuses_parts(
    runner: asyncio.Runner,
    request: tuple[PrivateKey, private.PrivateRequest, list[bytes]],
    data: st.DataObject,
) -> None:
    """R3: a frame that is cut, longer, or has changed bytes has no effect or a whole one."""
    key, message, contents = request
    header = encode_header(RequestHeader(key, private.VERSION, 5, "client"))
    whole = header + b"".join(private.encode_request(message, contents))
    assert is_private(memoryview(whole))
    assert runner.run(handled(whole)) == len(contents)
    assert runner.run(handled(whole[: data.draw(st.integers(0, len(whole) - 1))])) == 0
    assert runner.run(handled(whole + b"\0")) == 0
    changed = bytearray(whole)
    changed[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    assert runner.run(handled(bytes(changed))) in (0, len(contents))


@pytest.mark.parametrize(
    "head",
    [
        (-1, 0, 0, -1, 1),
        (0, -1, 0, -1, 1),
        (0, 0, -1, -1, 1),
        (0, 0, 0, -2, 1),
        (0, 0, 0, -1, -1),
        (0, 0, 0, -1, 2),
        (2**63, 0, 0, -1, 1),
        (0, 2**63, 0, -1, 1),
        (0, 0, 2**64 - 1, -1, 1),
        (0, 0, 0, 2**63, 1),
        (0, 0, 0, -1, 2**31),
    ],
)
def test_an_entry_that_the_disk_can_not_hold_is_no_request(
    runner: asyncio.Runner, head: tuple[int, ...]
) -> None:
    """R3: numbers are checked before anybody acts on them, and the neighbour is not stored."""
    bad = private.AppendHead(*head)  # type: ignore[arg-type]
    header = encode_header(RequestHeader(PrivateKey.APPEND, private.VERSION, 5, None))
    body = private.encode_request(private.Appends([GOOD, bad]), [b"x", b"y"])
    assert runner.run(handled(header + b"".join(body))) == 0


def test_more_entries_than_a_frame_may_have_are_refused(runner: asyncio.Runner) -> None:
    """R3: the number of entries and the size of a body are bounded."""
    header = encode_header(RequestHeader(PrivateKey.APPEND, private.VERSION, 5, None))
    for count, begun in ((512, 512), (513, 0), (60_000, 0)):
        body = private.encode_request(private.Appends([GOOD] * count), [b"x" * count])
        assert runner.run(handled(header + b"".join(body))) == begun


def test_a_length_that_is_only_announced_takes_no_memory() -> None:
    """R3: arrays and texts of four billion elements, in a few bytes."""
    bombs = [
        b"\x91\xdd\xff\xff\xff\xff",
        b"\x92\0\xdd\xff\xff\xff\xff",
        b"\x93\1\xdb\xff\xff\xff\xff",
    ]
    tracemalloc.start()
    try:
        for bomb in bombs:
            data = memoryview(len(bomb).to_bytes(4, "big") + bomb)
            for kind in private.REQUESTS.values():
                with pytest.raises(ProtocolViolation):
                    private.decode_request(kind, data)
            for answer_kind in answer_kinds:
                with pytest.raises(ProtocolViolation):
                    private.decode_answer(answer_kind, data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def _error_classes() -> list[type[DovetailError]]:
    found = [value for value in vars(errors).values() if isinstance(value, type)]
    return [value for value in found if issubclass(value, DovetailError)]


@pytest.mark.parametrize("kind", _error_classes(), ids=lambda kind: kind.__name__)
def test_an_error_is_raised_again_as_what_it_was(kind: type[DovetailError]) -> None:
    """L4: the caller of a remote node sees the classes that a local one raises."""
    data = joined(private.encode_answer(1, private.failure_of(kind("term 4, fenced at 6"))))
    found = private.decode_answer(private.LedgerFenced, data[8:])
    assert type(found) is kind
    assert str(found) == "term 4, fenced at 6"


def test_an_error_of_a_newer_node_is_unavailable() -> None:
    """L4: a class that is not known here can be tried again, and keeps its name and text."""
    found = private.error_of(private.Failure("OnHoliday", "until Monday"))
    assert type(found) is Unavailable
    assert str(found) == "OnHoliday: until Monday"
    assert type(private.error_of(private.Failure("ClassVar", "x"))) is Unavailable
    assert len(private.failure_of(Fenced("x" * 10_000)).text) == private.ERROR_TEXT_MAX
