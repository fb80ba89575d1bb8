"""What a consumer is finished with, and how it is reported."""

import asyncio

import pytest

from dovetail.errors import Unavailable
from dovetail.timeline.client.finished import REPORT_MAX, REPORTING_MAX, Finished
from dovetail.timeline.message import Handle, MessageId, Release, Version


def handle(number: int) -> Handle:
    return Handle(MessageId(number), Version(1))


class Broker:
    """Takes what it is told when it is let."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.asked: list[int] = []
        self.told: set[Handle] = set()

    async def delete(self, handles: list[Handle]) -> None:
        self.asked.append(len(handles))
        await self.open.wait()
        self.told.update(handles)

    async def release(self, releases: list[Release]) -> None:
        await self.delete([release.handle for release in releases])


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_some_are_on_their_way_while_others_gather() -> None:
    """B13, B14: as many requests at once as are allowed, and each handle in one of them."""
    finished, broker = Finished(), Broker()
    finished.done([handle(number) for number in range(2 * REPORT_MAX + 1)])
    telling = [
        asyncio.create_task(finished.report(broker.delete, broker.release))
        for _ in range(REPORTING_MAX + 1)
    ]
    await turns()
    assert broker.asked == [REPORT_MAX] * REPORTING_MAX
    assert not finished.reported
    broker.open.set()
    await asyncio.gather(*telling)
    assert broker.asked == [*[REPORT_MAX] * REPORTING_MAX, 1]
    assert broker.told == {handle(number) for number in range(2 * REPORT_MAX + 1)}
    assert finished.reported


async def test_what_could_not_be_reported_stays() -> None:
    """B13: the part that was not answered is told again, the part that was is not."""
    finished, broker = Finished(), Broker()
    broker.open.set()
    finished.done([handle(1)])
    finished.back(Release(handle(2), 5, True, ""))

    async def refused(releases: list[Release]) -> None:
        raise Unavailable("not now")

    with pytest.raises(Unavailable):
        await finished.report(broker.delete, refused)
    assert finished.handles() == {handle(2)}
    await finished.report(broker.delete, broker.release)
    assert broker.asked == [1, 1]
    assert finished.reported


async def test_while_hushed_nothing_is_on_its_way() -> None:
    """B13: a new session must not be told of a lease that is being deleted."""
    finished, broker = Finished(), Broker()
    finished.done([handle(1)])
    first = asyncio.create_task(finished.report(broker.delete, broker.release))
    await turns()
    hushed = asyncio.Event()
    speak = asyncio.Event()

    async def hush() -> None:
        async with finished.hushed():
            hushed.set()
            await speak.wait()

    hushing = asyncio.create_task(hush())
    await turns()
    assert not hushed.is_set(), "one is on its way"
    broker.open.set()
    await first
    await hushed.wait()
    finished.done([handle(2)])
    second = asyncio.create_task(finished.report(broker.delete, broker.release))
    await turns()
    assert finished.handles() == {handle(2)}
    speak.set()
    await asyncio.gather(hushing, second)
    assert finished.reported
