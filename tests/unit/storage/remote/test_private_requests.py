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
from dovetail.storage import calls as storage_calls
from dovetail.storage.calls import CALLS
from dovetail.storage.held import Span
from dovetail.storage.service import StorageService
from dovetail.wire import ByteBudget, Connection, Limits, PipelinedReply
from dovetail.wire.calls import (
    ERROR_TEXT_MAX,
    HELLO_KEY,
    STORAGE_KEYS,
    VERSION,
    Answer,
    Failure,
    Request,
    Welcome,
    answer_hello,
    api_key_of,
    cut_payloads,
    decode_answer_with_payloads,
    encode_answer,
    encode_request,
    error_of,
    failure_of,
)
from dovetail.wire.connection import SCRATCH_BYTES

GOOD = storage_calls.AppendHead(LedgerId(1), EntryId(1), Term(1), EntryId(-1), 1)

ids = st.integers(0, 2**63 - 1)
ids_or_none = st.integers(-1, 2**63 - 1)
payloads = st.lists(st.binary(max_size=50), min_size=1, max_size=20)

requests: dict[type[Request], st.SearchStrategy[Request]] = {
    storage_calls.FenceLedger: st.builds(storage_calls.FenceLedger, ids, ids),
    storage_calls.ReadEntries: st.builds(
        storage_calls.ReadEntries, ids, ids, ids_or_none, st.integers(0, 2**31 - 1)
    ),
    storage_calls.ReadForRecovery: st.builds(storage_calls.ReadForRecovery, ids, ids, ids),
    storage_calls.DeleteLedger: st.builds(storage_calls.DeleteLedger, ids),
    storage_calls.ListLedgers: st.just(storage_calls.ListLedgers()),
    storage_calls.AskHeld: st.builds(storage_calls.AskHeld, ids, ids, ids_or_none),
}
answers: st.SearchStrategy[Answer] = st.one_of(
    st.builds(Welcome, st.integers(0, 2**31 - 1), st.text(max_size=255), st.just(0), st.just([])),
    st.builds(
        storage_calls.AppendOutcomes,
        st.lists(st.none() | st.builds(Failure, st.text(), st.text()), max_size=20),
    ),
    st.builds(storage_calls.LedgerFenced, ids_or_none, ids_or_none, ids),
    st.just(storage_calls.LedgerDeleted()),
    st.builds(storage_calls.LedgersListed, st.lists(ids)),
    st.builds(
        storage_calls.HeldFound, st.lists(st.builds(Span, ids, ids), max_size=20), ids_or_none
    ),
)
answer_kinds = sorted(Answer.__subclasses__(), key=lambda kind: kind.__name__)


@st.composite
def keyed_requests(
    draw: st.DrawFn,
) -> tuple[Request, list[bytes]]:
    kind = draw(st.sampled_from(list(CALLS.requests.values())))
    if kind is not storage_calls.Appends:
        return draw(requests[kind]), []
    contents = draw(payloads)
    heads = [
        draw(st.builds(storage_calls.AppendHead, ids, ids, ids, ids_or_none, st.just(len(content))))
        for content in contents
    ]
    return storage_calls.Appends(heads), contents


def frame_of(message: Request, contents: list[bytes]) -> bytes:
    header = encode_header(RequestHeader(CALLS.key(type(message)), VERSION, 5, "client"))
    return header + b"".join(encode_request(message, contents))


def joined(buffers: list[Buffer]) -> memoryview:
    return memoryview(b"".join(buffers))


@given(keyed_requests())
def test_a_request_is_read_as_it_was_written(
    request: tuple[Request, list[bytes]],
) -> None:
    """R3: every message, with its payloads behind it."""
    message, contents = request
    call = CALLS.decode(memoryview(frame_of(message, contents)))
    found, rest = call.message, call.payloads
    assert (call.correlation_id, call.client_id) == (5, "client")
    assert found == message
    if isinstance(found, storage_calls.Appends):
        lengths = [head.payload_bytes for head in found.heads]
        assert cut_payloads(rest, lengths) == contents
    else:
        assert not rest


@given(answers, st.data())
def test_an_answer_is_read_as_it_was_written_and_not_when_cut(
    answer: Answer, data: st.DataObject
) -> None:
    """R3: every answer; any part of it is none."""
    whole = joined(encode_answer(7, answer))
    assert int.from_bytes(whole[:4], "big") == len(whole) - 4
    assert int.from_bytes(whole[4:8], "big") == 7
    assert decode_answer_with_payloads(type(answer), whole[8:]) == (answer, memoryview(b""))
    cut = whole[8 : data.draw(st.integers(8, len(whole) - 1))]
    with pytest.raises(ProtocolViolation):
        decode_answer_with_payloads(type(answer), cut)


@given(st.binary(max_size=200))
def test_noise_is_refused_and_nothing_else_happens(noise: bytes) -> None:
    """R3: a decoder gives a message, an error that travelled, or a violation."""
    framed = memoryview(len(noise).to_bytes(4, "big") + noise)
    for data in (memoryview(noise), framed):
        for key in CALLS.requests:
            header = encode_header(RequestHeader(key, VERSION, 5, None))
            try:
                CALLS.decode(memoryview(header + data))
            except ProtocolViolation:
                pass
        hello = encode_header(RequestHeader(HELLO_KEY, VERSION, 5, None))
        try:
            answer_hello(memoryview(hello + data), node="n", now_ms=0, services=[])
        except ProtocolViolation:
            pass
        for answer_kind in answer_kinds:
            try:
                decode_answer_with_payloads(answer_kind, data)
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
    service = StorageService(node)
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
    request: tuple[Request, list[bytes]],
    data: st.DataObject,
) -> None:
    """R3: a frame that is cut, longer, or has changed bytes has no effect or a whole one."""
    message, contents = request
    whole = frame_of(message, contents)
    assert api_key_of(memoryview(whole)) in STORAGE_KEYS
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
    bad = storage_calls.AppendHead(*head)  # type: ignore[arg-type]
    header = encode_header(RequestHeader(CALLS.key(storage_calls.Appends), VERSION, 5, None))
    body = encode_request(storage_calls.Appends([GOOD, bad]), [b"x", b"y"])
    assert runner.run(handled(header + b"".join(body))) == 0


def test_more_entries_than_a_frame_may_have_are_refused(runner: asyncio.Runner) -> None:
    """R3: the number of entries and the size of a body are bounded."""
    header = encode_header(RequestHeader(CALLS.key(storage_calls.Appends), VERSION, 5, None))
    for count, begun in ((512, 512), (513, 0), (60_000, 0)):
        body = encode_request(storage_calls.Appends([GOOD] * count), [b"x" * count])
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
            for key in CALLS.requests:
                header = encode_header(RequestHeader(key, VERSION, 5, None))
                with pytest.raises(ProtocolViolation):
                    CALLS.decode(memoryview(header + data))
            for answer_kind in answer_kinds:
                with pytest.raises(ProtocolViolation):
                    decode_answer_with_payloads(answer_kind, data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def _error_classes() -> list[type[DovetailError]]:
    found = [value for value in vars(errors).values() if isinstance(value, type)]
    return [value for value in found if issubclass(value, DovetailError)]


@pytest.mark.parametrize("kind", _error_classes(), ids=lambda kind: kind.__name__)
def test_an_error_is_raised_again_as_what_it_was(kind: type[DovetailError]) -> None:
    """L4: the caller of a remote node sees the classes that a local one raises."""
    data = joined(encode_answer(1, failure_of(kind("term 4, fenced at 6"))))
    found = decode_answer_with_payloads(storage_calls.LedgerFenced, data[8:])
    assert type(found) is kind
    assert str(found) == "term 4, fenced at 6"


def test_an_error_of_a_newer_node_is_unavailable() -> None:
    """L4: a class that is not known here can be tried again, and keeps its name and text."""
    found = error_of(Failure("OnHoliday", "until Monday"))
    assert type(found) is Unavailable
    assert str(found) == "OnHoliday: until Monday"
    assert type(error_of(Failure("ClassVar", "x"))) is Unavailable
    assert len(failure_of(Fenced("x" * 10_000)).text) == ERROR_TEXT_MAX
