"""A storage node behind a socket, when something goes wrong: kills, silence, floods, strangers."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.storage.remote.storage_door import (
    DEADLINE_S,
    IDENTITY,
    QUICK,
    Door,
    HeldNode,
    append,
    begin,
    greeting,
    open_local,
    outcomes_of,
    remote,
    storage_door,
    until,
)

from dovetail.buffers import Buffer
from dovetail.errors import (
    DovetailError,
    EntryUnknown,
    InvalidInput,
    Throttled,
    Unavailable,
    Uncertain,
)
from dovetail.kafka.codec.headers import RequestHeader, decode_header, encode_header
from dovetail.storage import Entry, EntryId, LedgerId, StorageNode, Term
from dovetail.storage import calls as storage_calls
from dovetail.storage.calls import CALLS
from dovetail.storage.disk.commands import GroupReport
from dovetail.storage.remote import RemoteStorageNode
from dovetail.storage.service import StorageService
from dovetail.wire import Connection, Dispatch, PipelinedReply, Reply
from dovetail.wire.calls import (
    HELLO_KEY,
    STORAGE_KEYS,
    VERSION,
    Answer,
    Failure,
    Welcome,
    api_key_of,
    encode_answer,
    encode_request,
)

ONE = LedgerId(1)
APPEND = CALLS.key(storage_calls.Appends)
FENCE = CALLS.key(storage_calls.FenceLedger)
READ = CALLS.key(storage_calls.ReadEntries)
LEDGERS = CALLS.key(storage_calls.ListLedgers)


def silent_but(*keys: int, behind: Dispatch) -> Dispatch:
    """Answers the greeting and these; begins nothing else, and never answers it."""

    def dispatch(connection: Connection, frame: memoryview) -> Reply:
        key = decode_header(frame)[0].api_key
        if key in (HELLO_KEY, *keys):
            return behind(connection, frame)
        return PipelinedReply(asyncio.get_running_loop().create_future())

    return dispatch


async def read_all(node: StorageNode, count: int) -> list[Entry]:
    found: list[Entry] = []
    while len(found) < count:
        at = EntryId(len(found))
        found += await node.read(ONE, at, last=EntryId(count - 1), bytes_max=1 << 20)
    return found


# ---- kills


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not stored"])
async def test_a_kill_leaves_appends_uncertain_and_repeating_them_is_safe(
    tmp_path: Path, stored: bool
) -> None:
    """L4, L5: what was sent may or may not be stored; repeated, each entry is there once."""
    async with storage_door(tmp_path) as door, remote(door) as node:
        service = door.dispatch
        appends_seen = 0

        def killed_at_third(connection: Connection, frame: memoryview) -> Reply:
            nonlocal appends_seen
            appends_seen += decode_header(frame)[0].api_key == APPEND
            if appends_seen < 3:
                return service(connection, frame)
            reply = service(connection, frame) if stored else None
            connection.close()
            return reply

        door.dispatch = killed_at_third
        told: list[int] = []
        begun = [begin(node, 1, n, b"%d" % n, told=told.append) for n in range(4000)]
        outcomes = await outcomes_of(begun)
        await door.kill()
        assert told == list(range(4000))
        assert {type(outcome) for outcome in outcomes} <= {type(None), Uncertain}
        assert isinstance(outcomes[2 * storage_calls.APPENDS_MAX], Uncertain)
        assert isinstance(outcomes[-1], Uncertain)
        door.dispatch = service
        await door.open()
        again = await outcomes_of([begin(node, 1, n, b"%d" % n) for n in range(4000)])
        assert again == [None] * 4000
        assert [bytes(e.payload) for e in await read_all(node, 4000)] == [
            b"%d" % n for n in range(4000)
        ]
    assert door.budget.bytes_taken == 0


async def test_a_call_waits_for_a_node_that_comes_back(tmp_path: Path) -> None:
    """L10: calls that were not sent wait for the connection, and then go out in order."""
    async with storage_door(tmp_path) as door, remote(door) as node:
        assert await append(node, 1, 0, b"a") is None
        await door.kill()
        await until(lambda: not node.connected)
        told: list[int] = []
        begun = [begin(node, 1, n, b"b", told=told.append) for n in range(1, 1000)]
        reading = asyncio.ensure_future(node.ledgers())
        await asyncio.sleep(0)
        assert not told
        await door.open()
        assert await outcomes_of(begun) == [None] * 999
        assert told == list(range(1, 1000))
        assert await reading == {1}


async def test_a_node_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    """L4: a call that was never sent has not happened, and says why."""
    async with storage_door(tmp_path) as door:
        await door.stop()
        async with remote(door, replace(QUICK, call_ms_max=100)) as node:
            outcome, fenced, read = await asyncio.gather(
                append(node, 1, 0, b"a"),
                asyncio.gather(node.fence(ONE, Term(1)), return_exceptions=True),
                asyncio.gather(node.ledgers(), return_exceptions=True),
            )
            for error in (outcome, *fenced, *read):
                assert type(error) is Unavailable
                assert "no connection to 127.0.0.1" in str(error)
                assert "refused" in str(error).lower()


# ---- silence


async def test_a_node_that_stops_answering_is_noticed_and_left(tmp_path: Path) -> None:
    """L4: past its deadline a call fails, and with it the connection; the next one is new."""
    async with storage_door(tmp_path) as door:
        service = door.dispatch
        door.dispatch = silent_but(behind=service)
        async with remote(door, replace(QUICK, call_ms_max=1500)) as node:
            told: list[int] = []
            begun = [begin(node, 1, n, b"a", told=told.append) for n in range(1000)]
            fenced, read, recovery, deleted = await asyncio.gather(
                node.fence(ONE, Term(1)),
                node.read(ONE, EntryId(0), last=EntryId(0), bytes_max=1),
                node.read_for_recovery(ONE, EntryId(0), Term(1)),
                node.delete(ONE),
                return_exceptions=True,
            )
            assert [type(e) for e in (fenced, deleted)] == [Uncertain, Uncertain]
            assert [type(e) for e in (read, recovery)] == [Unavailable, Unavailable]
            assert "no answer within 1500 ms" in str(fenced)
            assert {type(outcome) for outcome in await outcomes_of(begun)} == {Uncertain}
            assert told == list(range(1000))
            await until(lambda: not door.connections)
            door.dispatch = service
            assert await append(node, 1, 0, b"a") is None
            assert await node.ledgers() == {1}
            assert door.opened_ever == 4


async def test_a_port_that_accepts_and_says_nothing_is_unavailable() -> None:
    """L4: without a greeting nothing is sent, so nothing is uncertain."""
    seen: list[bytes] = []
    ended = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read(1 << 20))
        await reader.read()
        writer.close()
        ended.set()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = replace(QUICK, call_ms_max=120, connect_ms_max=50)
    node = RemoteStorageNode("127.0.0.1", port, client_id="test", settings=settings)
    outcome = await append(node, 1, 0, b"a")
    assert type(outcome) is Unavailable
    assert "no greeting within 50 ms" in str(outcome)
    await asyncio.wait_for(ended.wait(), DEADLINE_S)
    await node.close()
    server.close()
    await server.wait_closed()
    for data in seen:
        assert decode_header(memoryview(data)[4:])[0].api_key == HELLO_KEY


async def test_a_slow_read_does_not_hold_up_appends(tmp_path: Path) -> None:
    """L7: reads have a connection of their own."""
    async with storage_door(tmp_path) as door:
        door.dispatch = silent_but(APPEND, FENCE, behind=door.dispatch)
        async with remote(door) as node:
            reading = asyncio.ensure_future(
                node.read(ONE, EntryId(0), last=EntryId(0), bytes_max=1)
            )
            await until(lambda: READ in door.keys)
            assert await append(node, 1, 0, b"a") is None
            assert (await node.fence(ONE, Term(2))).entry_last == 0
            assert not reading.done()
            await node.close()
            with pytest.raises(Unavailable):
                await reading


# ---- limits


async def test_appends_of_one_turn_share_frames_and_syncs(tmp_path: Path) -> None:
    """L6: a frame has some hundred entries or 4 MiB; its entries share a group commit."""
    groups: list[GroupReport] = []
    local = open_local(tmp_path, groups)
    door = Door(greeting(StorageService(local)))
    await door.open()
    async with remote(door) as node:
        assert not any(await outcomes_of([begin(node, 1, n, b"a") for n in range(1200)]))
        assert door.keys.count(APPEND) == 3
        assert len(groups) <= 3
        assert not any(await outcomes_of([begin(node, 2, n, bytes(3 << 20)) for n in range(3)]))
        assert door.keys.count(APPEND) == 6
    await door.stop()
    await local.close()


async def test_ten_thousand_appends_are_pipelined(tmp_path: Path) -> None:
    """L4, L6: 10,000 entries of 1 KiB, all begun before the first is answered."""
    # How soon they are answered is not what this is about: the machine may be very busy.
    unhurried = replace(QUICK, call_ms_max=120_000, connect_ms_max=120_000)
    async with storage_door(tmp_path) as door, remote(door, unhurried) as node:
        told: list[int] = []
        payloads = [n.to_bytes(4, "big") * 256 for n in range(10_000)]
        begun = [begin(node, 1, n, p, told=told.append) for n, p in enumerate(payloads)]
        assert not any(await outcomes_of(begun))
        assert told == list(range(10_000))
        assert [bytes(e.payload) for e in await read_all(node, 10_000)] == payloads


async def test_what_is_too_much_is_refused_at_once(tmp_path: Path) -> None:
    """L4: beyond its bytes in flight a node is not sent more; that has not happened."""
    async with storage_door(tmp_path) as door:
        service = door.dispatch
        door.dispatch = silent_but(behind=service)
        settings = replace(QUICK, bytes_in_flight_max=100_000, request_bytes_max=300_000)
        async with remote(door, settings) as node:
            first = begin(node, 1, 0, bytes(200_000))  # Alone it may be larger than the limit.
            await until(lambda: APPEND in door.keys)
            assert type(await append(node, 1, 1, b"b")) is Throttled
            with pytest.raises(Throttled):
                await node.fence(ONE, Term(1))
            await door.kill()
            assert type(await first) is Uncertain
            door.dispatch = service
            await door.open()
            assert type(await append(node, 1, 0, bytes(400_000))) is InvalidInput
            assert await append(node, 1, 1, b"b") is None
            with pytest.raises(EntryUnknown):
                await node.read(ONE, EntryId(0), last=EntryId(0), bytes_max=1)


async def test_the_bytes_of_a_frame_are_held_until_its_entries_are_down() -> None:
    """R3: also when the client has gone and nobody waits for the answer."""
    held = HeldNode()
    door = Door(greeting(StorageService(held)))
    await door.open()
    async with remote(door) as node:
        begun = [begin(node, 1, n, bytes(1000)) for n in range(10)]
        await until(lambda: len(held.held) == 10)
    assert {type(outcome) for outcome in await outcomes_of(begun)} == {Uncertain}
    await until(lambda: not door.connections)
    for answer in held.held[:9]:
        answer(None)
    assert door.budget.bytes_taken > 10_000
    held.held[9](Unavailable("no"))
    await until(lambda: door.budget.bytes_taken == 0)
    await door.stop()
    assert not door.failures


async def test_answers_of_a_storage_node_are_bounded_and_its_disk_errors_told() -> None:
    """L7: however much is asked for; an error of the disk closes no connection."""
    door = Door(greeting(StorageService(HeldNode())))
    await door.open()
    async with remote(door) as node:
        found = await node.read(ONE, EntryId(5), last=EntryId(10**9), bytes_max=1 << 40)
        assert [entry.entry for entry in found] == list(
            range(5, 5 + storage_calls.READ_ENTRIES_MAX)
        )
        assert len(await node.ledgers()) == 100_000
        with pytest.raises(Unavailable, match="on fire"):
            await node.fence(ONE, Term(1))
        assert door.opened_ever == 2
    await door.stop()


# ---- strangers


@pytest.mark.parametrize(
    ("welcome", "why"),
    [
        (Welcome(2, "n", 0, ["storage"], IDENTITY), "speaks version 2 .* this side 3"),
        (Welcome(VERSION, "n", 0, ["storage"], "storage-9"), "is storage node 'storage-9', not "),
        (storage_calls.LedgersListed([]), "is not a Dovetail node"),
        (Failure("Fenced", "go away"), "go away"),
    ],
)
async def test_nothing_is_sent_to_a_node_that_is_another(
    welcome: Answer | Failure, why: str
) -> None:
    """L4: neither to another version nor to another node; and that is said at once."""

    def dispatch(connection: Connection, frame: memoryview) -> Reply:
        return encode_answer(decode_header(frame)[0].correlation_id, welcome)

    door = Door(dispatch)
    await door.open()
    async with remote(door) as node:
        begun = [begin(node, 1, n, b"a") for n in range(3)]
        with pytest.raises(DovetailError, match=why):
            await node.fence(ONE, Term(1))
        outcomes = await outcomes_of(begun)
        assert all(isinstance(outcome, DovetailError) for outcome in outcomes)
        assert not any(isinstance(outcome, Uncertain) for outcome in outcomes)
        assert set(door.keys) == {HELLO_KEY}
    await door.stop()


def _garbage(correlation_id: int) -> Sequence[bytes]:
    head = correlation_id.to_bytes(4, "big")
    outcomes = encode_answer(correlation_id, storage_calls.AppendOutcomes([None, None]))
    other = encode_answer(correlation_id + 7, storage_calls.AppendOutcomes([None]))
    behind = encode_answer(correlation_id, storage_calls.AppendOutcomes([None]), [b"more"])
    return [
        (4).to_bytes(4, "big") + head,
        (8).to_bytes(4, "big") + head + b"\xff\xff\xff\xff",
        (12).to_bytes(4, "big") + head + b"\0\0\0\4\xc1\xc1\xc1\xc1",
        (3).to_bytes(4, "big") + b"abc",
        b"\x7f\xff\xff\xff" + head,
        b"\xff\xff\xff\xff" + head,
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"".join(outcomes),
        b"".join(other),
        b"".join(behind),
    ]


@pytest.mark.parametrize("which", range(10))
async def test_what_is_no_answer_ends_the_connection(tmp_path: Path, which: int) -> None:
    """R3: the append is uncertain, no memory is taken for a length that cannot be, and it goes on.

    The number of outcomes, the correlation id and what stands behind are checked too.
    """
    async with storage_door(tmp_path) as door, remote(door) as node:
        service = door.dispatch

        def dispatch(connection: Connection, frame: memoryview) -> Reply:
            header = decode_header(frame)[0]
            if header.api_key == HELLO_KEY:
                return service(connection, frame)
            return [_garbage(header.correlation_id)[which]]

        door.dispatch = dispatch
        outcome = await append(node, 1, 0, b"a")
        assert type(outcome) is Uncertain
        assert "no answer" in str(outcome)
        door.dispatch = service
        assert await append(node, 1, 0, b"a") is None


async def test_entries_that_were_not_asked_for_are_no_answer(tmp_path: Path) -> None:
    """L7: a read gets the entries that it named, or fails."""
    answers = [
        encode_answer(2, storage_calls.EntriesRead([storage_calls.EntryHead(*head)]), [b"x"])
        for head in ((EntryId(6), Term(1), EntryId(-1), 1), (EntryId(5), Term(1), EntryId(-1), 2))
    ]
    async with storage_door(tmp_path) as door, remote(door) as node:
        service = door.dispatch

        def dispatch(connection: Connection, frame: memoryview) -> Reply:
            if decode_header(frame)[0].api_key == HELLO_KEY:
                return service(connection, frame)
            return answers.pop()

        door.dispatch = dispatch
        for _ in range(2):
            with pytest.raises(Unavailable, match="no answer"):
                await node.read(ONE, EntryId(5), last=EntryId(5), bytes_max=1)


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        (APPEND, VERSION - 1, encode_request(storage_calls.ListLedgers())),
        (LEDGERS, VERSION, encode_request(storage_calls.ListLedgers(), [b"more"])),
        (10_999, VERSION, encode_request(storage_calls.ListLedgers())),
        (APPEND, VERSION, encode_request(storage_calls.Appends([]))),
        (APPEND, VERSION, [b"GET / HTTP/1.1\r\n\r\n"]),
    ],
)
async def test_what_is_no_request_is_refused_by_the_door(
    tmp_path: Path, key: int, version: int, body: list[Buffer]
) -> None:
    """R3: the connection is closed with a word in the log, and nothing was done."""
    content = encode_header(RequestHeader(key, version, 1, "stranger")) + b"".join(body)
    assert api_key_of(memoryview(content)) in STORAGE_KEYS
    async with storage_door(tmp_path) as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(len(content).to_bytes(4, "big") + content)
        try:
            assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
        except ConnectionResetError:
            pass
        writer.close()
        assert len(door.violations) == 1
        assert not door.failures
        async with remote(door) as node:
            assert await node.ledgers() == set()


# ---- ends


async def test_closing_ends_everything(tmp_path: Path) -> None:
    """L4: what is on its way is uncertain, what comes later has not happened; no task is left."""
    async with storage_door(tmp_path) as door:
        door.dispatch = silent_but(behind=door.dispatch)
        tasks_before = len(asyncio.all_tasks())
        async with remote(door) as node:
            sent = begin(node, 1, 0, b"a")
            await until(lambda: APPEND in door.keys)
            gathered = begin(node, 1, 1, b"b")
            await node.close()
            assert type(await sent) is Uncertain
            assert isinstance(await gathered, Uncertain)
            assert type(await append(node, 1, 2, b"c")) is Unavailable
            with pytest.raises(Unavailable, match="closed by this side"):
                await node.ledgers()
        assert len(asyncio.all_tasks()) == tasks_before
        await until(lambda: not door.connections)


async def test_closing_while_connecting_ends_that_too(tmp_path: Path) -> None:
    """L4: calls that wait fail as not happened."""
    async with storage_door(tmp_path) as door:
        await door.stop()
        node = RemoteStorageNode("127.0.0.1", door.port, client_id="test", rng=random.Random(1))
        waiting = begin(node, 1, 0, b"a")
        reading = asyncio.ensure_future(node.ledgers())
        await asyncio.sleep(0)
        await node.close()
        assert type(await waiting) is Unavailable
        with pytest.raises(Unavailable):
            await reading


async def test_a_defect_of_one_caller_leaves_the_others_their_answers(tmp_path: Path) -> None:
    """R3: an answer that raises is reported to the loop; the rest of its frame goes on."""
    reports: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))

    def defect(_: int) -> None:
        raise ValueError("as asked")

    async with storage_door(tmp_path) as door, remote(door) as node:
        broken = begin(node, 1, 0, b"a", told=defect)
        assert await append(node, 1, 1, b"b") is None
        assert not broken.done()
        assert len(reports) == 1
        assert await append(node, 1, 2, b"c") is None
