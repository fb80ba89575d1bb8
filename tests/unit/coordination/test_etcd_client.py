"""The etcd client without faults: settings, errors, pages, and what was given up."""

import asyncio
import sys

import grpc
import pytest
from grpc._cython import cygrpc
from grpc.aio import _call
from tests.etcd_server import EtcdCluster
from tests.unit.coordination.driving import put

from dovetail.coordination import Put, Revision
from dovetail.coordination._etcd_members import Verdict, judge
from dovetail.coordination._etcd_messages import RANGE_PAGE_KEYS_MAX, Messages
from dovetail.coordination.etcd import EtcdCoordinator, EtcdSettings
from dovetail.errors import (
    CoordinationDown,
    DiskFull,
    DovetailError,
    InvalidInput,
    InvalidSetting,
    LeaseLost,
    Throttled,
    WatchGap,
)


@pytest.mark.parametrize(
    "settings",
    [
        EtcdSettings(()),
        EtcdSettings(("127.0.0.1",)),
        EtcdSettings(("https://127.0.0.1:2379",)),
        EtcdSettings(("https://127.0.0.1:2379",), tls_ca="not-there.pem"),
        EtcdSettings(("https://127.0.0.1:2379", "127.0.0.1:2380"), tls_ca="ca.pem"),
        EtcdSettings(("127.0.0.1:2379",), tls_ca="ca.pem"),
        EtcdSettings(("https://127.0.0.1:2379",), tls_ca="ca.pem", tls_key="ours.key"),
        EtcdSettings(("127.0.0.1:2379/path",)),
        EtcdSettings(("127.0.0.1:2379",), namespace=""),
        EtcdSettings(("127.0.0.1:2379",), namespace="/no-slash"),
        EtcdSettings(("127.0.0.1:2379",), namespace="n" * 256 + "/"),
        EtcdSettings(("127.0.0.1:2379",), attempt_timeout_ms=0),
        EtcdSettings(("127.0.0.1:2379",), attempt_timeout_ms=2000, request_timeout_ms=1000),
    ],
)
async def test_settings_that_cannot_work_are_refused(settings: EtcdSettings) -> None:
    """U3: a bad setting is refused before anything is tried."""
    with pytest.raises(InvalidSetting):
        await EtcdCoordinator.open(settings)


async def test_without_the_client_library_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """U7: who has not installed the client is told what to install."""
    monkeypatch.setitem(sys.modules, "aetcd", None)
    for name in ("_etcd_members", "_etcd_messages", "_etcd_watch"):
        monkeypatch.delitem(sys.modules, f"dovetail.coordination.{name}", raising=False)
    with pytest.raises(InvalidSetting, match=r"dovetailmq\[etcd\]"):
        await EtcdCoordinator.open(EtcdSettings(("127.0.0.1:2379",)))


async def test_a_lease_is_renewed_though_its_stream_ends_meanwhile(
    etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R5: closing the half of a stream that has just ended raises what is no error of a call."""

    async def ended(_: object) -> None:
        raise cygrpc.ExecuteBatchError("execute_batch", ())

    monkeypatch.setattr(_call.StreamStreamCall, "done_writing", ended)
    async with await EtcdCoordinator.open(EtcdSettings(etcd.endpoints)) as coordinator:
        lease = await coordinator.grant(ttl_ms=5_000)
        await coordinator.keep_alive(lease)


async def test_importing_dovetail_loads_no_etcd_client() -> None:
    """U2: who needs no etcd needs no client for it."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import sys, dovetail.coordination.etcd\nassert not {'aetcd', 'grpc'} & set(sys.modules)",
    )
    assert await child.wait() == 0


@pytest.mark.parametrize(
    ("code", "details", "expected"),
    [
        ("NOT_FOUND", "etcdserver: requested lease not found", LeaseLost),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted", WatchGap),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", DiskFull),
        ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", Throttled),
        ("INVALID_ARGUMENT", "etcdserver: request is too large", InvalidInput),
        ("PERMISSION_DENIED", "etcdserver: permission denied", CoordinationDown),
        ("UNAVAILABLE", "etcdserver: no leader", Verdict.NOT_DONE),
        ("UNAVAILABLE", "etcdserver: leader changed", Verdict.UNKNOWN),
        ("UNAVAILABLE", "etcdserver: request timed out", Verdict.UNKNOWN),
        ("UNAVAILABLE", "Socket closed", Verdict.UNKNOWN),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", Verdict.UNKNOWN),
        ("INTERNAL", "", Verdict.UNKNOWN),
    ],
)
def test_what_an_error_of_etcd_means(
    code: str, details: str, expected: type[DovetailError] | Verdict
) -> None:
    """L9: only what certainly was not done is called so."""
    verdict = judge(grpc.StatusCode[code], details)
    assert verdict is expected or type(verdict) is expected


@pytest.mark.parametrize(("ttl_ms", "seconds"), [(1, 1), (999, 1), (1000, 1), (1001, 2)])
def test_a_lease_is_never_shorter_than_asked_for(ttl_ms: int, seconds: int) -> None:
    """L1: etcd counts in seconds, so the time is rounded up."""
    request = Messages("/n/").grant(ttl_ms=ttl_ms)
    assert seconds == request.TTL


async def test_namespaces_do_not_see_each_other(etcd: EtcdCluster) -> None:
    """L1: two installations share one etcd, also where one name begins with the other."""
    names = ("/apart/a/", "/apart/a/b/", "/apart/b/")
    coordinators = [
        await EtcdCoordinator.open(EtcdSettings(etcd.endpoints, namespace=name)) for name in names
    ]
    inner, outer = coordinators[1], coordinators[0]
    await put(coordinators[2], "key", b"b")
    await put(inner, "key", b"inner")
    assert [item.key for item in (await inner.range("")).items] == ["key"]
    assert [item.key for item in (await outer.range("")).items] == ["b/key"]
    assert await outer.get("key") is None
    await asyncio.gather(*(coordinator.close() for coordinator in coordinators))


async def test_a_long_range_is_of_one_revision(etcd: EtcdCluster) -> None:
    """L1: pages of a range show one state, whatever is written and compacted between them."""
    settings = EtcdSettings(etcd.endpoints, namespace="/pages/")
    keys = [f"k/{number:05}" for number in range(2 * RANGE_PAGE_KEYS_MAX + 100)]
    async with await EtcdCoordinator.open(settings) as coordinator:
        for begin in range(0, len(keys), 100):
            await coordinator.transact([Put(key, b"") for key in keys[begin : begin + 100]])
        disturbances = 0
        read = coordinator._members.request

        async def disturbed(*arguments: object, **named: object) -> object:
            nonlocal disturbances
            answer: object = await read(*arguments, **named)  # type: ignore[arg-type]
            if disturbances < 2:
                disturbances += 1
                outcome = await direct.transact([Put(keys[-1], b"%d" % disturbances)])
                if disturbances == 1:
                    await asyncio.to_thread(etcd.members[0].compact, outcome.revision)
            return answer

        async with await EtcdCoordinator.open(settings) as direct:
            coordinator._members.request = disturbed  # type: ignore[assignment]
            snapshot = await coordinator.range("k/")
            # The first attempt lost its revision; the second does not see what came under way.
            assert [item.key for item in snapshot.items] == keys
            assert snapshot.items[-1].value == b"1"
            assert disturbances == 2
            assert max(item.revision for item in snapshot.items) <= snapshot.revision


async def test_a_revision_of_another_history_is_a_gap(etcd: EtcdCluster) -> None:
    """L9: a watch after a revision that etcd has not come to says so, and does not wait."""
    settings = EtcdSettings(etcd.endpoints, namespace="/foreign/")
    async with await EtcdCoordinator.open(settings) as coordinator:
        revision = await put(coordinator, "a")
        async with coordinator.watch("", after=Revision(revision + 1_000_000)) as events:
            for _ in range(2):
                with pytest.raises(WatchGap, match="another history"):
                    await anext(events)
