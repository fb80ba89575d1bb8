"""A member of a cluster: elect me, tell me my term, tell me when I lost it.

    async with ClusterMember(...) as member:
        leadership = await member.lead()          waits until this member leads
        leadership.term                           give it to the store that you write to
        leadership.valid                          False from the moment at which it is lost
        await leadership.confirm()                raises `Fenced` if somebody leads after you
        await leadership.lost.wait()

Nothing here knows of a stream: masters of other things are elected with it as well.

The machine decides (`election`); here its effects are performed: votes are synced before anything
that rests on them is said, messages are sent, records appended, time is watched. A leadership is
lost at once when the machine says so, whatever is still waiting to be performed. A disk that does
not take a vote ends the member, loudly: it must not speak any more.
"""

import asyncio
import random
import uuid
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from dovetail.clock import Clock, SystemClock
from dovetail.election.bully import BullyElection
from dovetail.election.campaign import Campaigner
from dovetail.election.election import (
    Append,
    AppendOutcome,
    Campaign,
    Effect,
    Election,
    Identity,
    Lead,
    Persist,
    Release,
    Renew,
    Reply,
    Role,
    Send,
    StepDown,
    Times,
    Vote,
)
from dovetail.election.fold import Announce, Claim, Leave, Record, Report
from dovetail.election.identifiers import Algorithm, Incarnation, MemberName, Position, Term
from dovetail.election.leadership import Leadership, MemberStatus
from dovetail.election.lease import LeaseElection
from dovetail.election.majority import MajorityElection
from dovetail.election.messages import Message
from dovetail.election.metrics import StreamMetrics
from dovetail.election.shared_log import Entry, SharedLog
from dovetail.election.transport import Transport
from dovetail.election.vote_file import VoteFile
from dovetail.errors import DovetailError, Fenced, InvalidSetting, Unavailable
from dovetail.logging import get_logger

#: The leader trims the shared log when a new member would have to read so many records.
TRIM_RECORDS = 10_000
#: Messages to one member that wait for an answer; what is more is lost, as a network may do.
IN_FLIGHT_MAX = 8
#: Longest time for the farewell at the end.
FAREWELL_S_MAX = 1.0
#: How often a lease that is held is looked at, in timeouts.
LEASE_LOOK = 0.1

_log = get_logger("stream")


@dataclass(slots=True)
class _Work:
    """Effects that wait to be performed, and who waits for the answer among them."""

    effects: list[Effect]
    reply: "asyncio.Future[Message | None] | None" = None


class ClusterMember:
    """One member; made with its parts, each of which can be another."""

    def __init__(
        self,
        name: MemberName,
        *,
        algorithm: Algorithm,
        times: Times,
        shared_log: SharedLog,
        transport: Transport | None = None,
        vote_file: VoteFile | None = None,
        campaigner: Callable[[Identity], Campaigner] | None = None,
        metrics: StreamMetrics | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.me = Identity(name, Incarnation(uuid.uuid4().hex))
        self.algorithm = algorithm
        self.metrics = metrics or StreamMetrics()
        #: Called with the status after every change of role, term or leader.
        self.on_change: list[Callable[[MemberStatus], None]] = []
        self.failure: BaseException | None = None
        self._times = times
        self._shared_log = shared_log
        self._transport = transport
        self._vote_file = vote_file
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()  # noqa: S311 - staggers elections, guards nothing
        self._campaigner = None if campaigner is None else campaigner(self.me)
        self._check_parts()
        self._leadership: Leadership | None = None
        self._led = asyncio.Condition()
        self._outbox: asyncio.Queue[_Work] = asyncio.Queue()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._in_flight: dict[MemberName, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._sequence = 0
        self._running = False
        self._trimming = False
        self._told: tuple[Role, Term, MemberName | None] | None = None

    def _check_parts(self) -> None:
        if self.algorithm is Algorithm.MAJORITY and self._vote_file is None:
            raise InvalidSetting("MAJORITY needs a vote_file: one vote per term, kept on disk")
        if self.algorithm is Algorithm.COORDINATOR and self._campaigner is None:
            raise InvalidSetting("COORDINATOR needs a campaigner: the coordination service")
        if self.algorithm is not Algorithm.COORDINATOR and self._transport is None:
            raise InvalidSetting(f"{self.algorithm.name} needs a transport between the members")

    # --- life ---------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self, position: Position | None = None, source: str | None = None) -> None:
        """Reads the log, announces this member, and takes part in elections.

        `position` is where the stream is now and `source` its name, if this is about a stream.

        Raises `Unavailable` if it cannot announce itself, `Damaged` for a vote that does not
        check; then nothing is left running.
        """
        try:
            vote = await asyncio.to_thread(self._vote_file.read) if self._vote_file else Vote()
            await self._shared_log.open(self._on_entry)
            if self._transport is not None:
                await self._transport.start(self.me, self._receive, self._life_of)
            await self._announce(position, source)
        except BaseException:
            await self._end()
            raise
        self.election = self._make_election(vote)
        self._running = True
        self._spawn(self._perform_all())
        if self._campaigner is not None:
            assert isinstance(self.election, LeaseElection)
            self._campaigner.start(self.election, self.do)
        self.do(lambda _: [])

    async def close(self) -> None:
        """Says farewell and ends; a leader hands over at once."""
        if self._running:
            self.do(lambda now: self.election.on_stop(now_ms=now))
            self._running = False
            with suppress(DovetailError, TimeoutError):
                async with asyncio.timeout(FAREWELL_S_MAX):
                    await self._outbox.join()
                    await asyncio.gather(*self._sends(), return_exceptions=True)
                    await self._shared_log.append(Leave(self.me.name, self.me.incarnation))
        await self._end()

    def do(self, call: Callable[[float], list[Effect]]) -> None:
        """Lets the machine decide, and queues what follows."""
        self._work(call, None)

    async def lead(self) -> Leadership:
        """Waits until this member leads. Raises what ended the member, if something did."""
        async with self._led:
            await self._led.wait_for(lambda: self._leadership or self.failure)
        if self.failure is not None:
            raise Unavailable(f"this member has ended: {self.failure}") from self.failure
        assert self._leadership is not None
        return self._leadership

    @property
    def leadership(self) -> Leadership | None:
        """The present leadership of this member, if it leads."""
        return self._leadership

    @property
    def shared_log(self) -> SharedLog:
        """The log that decides."""
        return self._shared_log

    def status(self) -> MemberStatus:
        """What this member knows now."""
        state = self._shared_log.state
        return MemberStatus(
            name=self.me.name,
            algorithm=self.algorithm,
            role=self.election.role,
            term=state.term,
            leader=state.leader,
            members=tuple(self.election.members(self._clock.monotonic_ms())),
            elections=tuple(state.elections),
            failure=None if self.failure is None else str(self.failure),
        )

    # --- the machine --------------------------------------------------------------------------

    def _make_election(self, vote: Vote) -> Election:
        state, now_ms = self._shared_log.state, self._clock.monotonic_ms()
        if self.algorithm is Algorithm.MAJORITY:
            return MajorityElection(
                self.me, self._times, state, self._rng, now_ms=now_ms, vote=vote
            )
        kind = BullyElection if self.algorithm is Algorithm.BULLY else LeaseElection
        return kind(self.me, self._times, state, self._rng, now_ms=now_ms)

    def _work(
        self,
        call: Callable[[float], list[Effect]],
        reply: "asyncio.Future[Message | None] | None",
    ) -> None:
        effects = call(self._clock.monotonic_ms())
        for effect in effects:
            if isinstance(effect, Lead):
                self._on_lead(effect)
            elif isinstance(effect, StepDown):
                self._on_step_down(effect)
        if effects or reply is not None:
            self._outbox.put_nowait(_Work(effects, reply))
        self._arm()
        self._tell()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._running:
            return
        wait_ms = max(0.0, self.election.wake_ms() - self._clock.monotonic_ms())
        if self._campaigner is not None:
            wait_ms = min(wait_ms, self._times.timeout_ms * LEASE_LOOK)
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._tick)

    def _tick(self) -> None:
        if self._campaigner is not None and isinstance(self.election, LeaseElection):
            held_until_ms = self._campaigner.valid_until_ms
            if held_until_ms is not None:
                self.election.on_kept(valid_until_ms=held_until_ms)
        self.do(lambda now: self.election.on_tick(now_ms=now))

    def _on_lead(self, effect: Lead) -> None:
        self._sequence = 0
        self._leadership = Leadership(effect.term, self.election, self._clock, self._report)
        self.metrics.leaderships.inc()
        _log.info("this member leads", member=self.me.name, term=effect.term)
        self._spawn(self._wake_leads())

    def _on_step_down(self, effect: StepDown) -> None:
        leadership, self._leadership = self._leadership, None
        if leadership is not None:
            leadership.end()
        _log.info(
            "this member no longer leads",
            member=self.me.name,
            term=effect.term,
            reason=effect.reason,
        )

    async def _wake_leads(self) -> None:
        async with self._led:
            self._led.notify_all()

    def _tell(self) -> None:
        state, role = self._shared_log.state, self.election.role
        now = (role, state.term, state.leader)
        if now == self._told:
            return
        self._told = now
        self.metrics.leading.set(role is Role.LEADER)
        self.metrics.term.set(state.term)
        status = self.status()
        self.metrics.members.set(len(status.members))
        for told in self.on_change:
            try:
                told(status)
            except Exception:  # noqa: BLE001 - a user's callback must not end the member
                _log.exception("a callback raised")

    # --- effects ------------------------------------------------------------------------------

    async def _perform_all(self) -> None:
        while True:
            work = await self._outbox.get()
            try:
                await self._perform(work)
            except OSError as error:
                self._fail(error)
            finally:
                if work.reply is not None and not work.reply.done():
                    work.reply.set_result(None)
                self._outbox.task_done()

    async def _perform(self, work: _Work) -> None:
        for effect in work.effects:
            if isinstance(effect, Persist):
                assert self._vote_file is not None
                await asyncio.to_thread(self._vote_file.write, effect.vote)
            elif isinstance(effect, Send):
                self._spawn_send(effect)
            elif isinstance(effect, Reply):
                if work.reply is not None and not work.reply.done():
                    work.reply.set_result(effect.message)
            elif isinstance(effect, Append):
                self._spawn(self._append_and_tell(effect.record))
            elif isinstance(effect, Renew):
                self._spawn(self._renew(effect))
            elif isinstance(effect, Campaign):
                assert self._campaigner is not None
                self._spawn(self._campaigner.campaign(effect.term_min))
            elif isinstance(effect, Release):
                assert self._campaigner is not None
                self._spawn(self._campaigner.release())

    def _fail(self, error: BaseException) -> None:
        """The vote cannot be kept: this member must not say anything any more."""
        self.failure = error
        _log.error("this member ends: its vote cannot be written", reason=str(error))
        self.do(lambda now: self.election.on_stop(now_ms=now))
        self._spawn(self._wake_leads())

    def _spawn(self, work: Coroutine[Any, Any, None], *, name: str = "stream") -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a task of the member met a defect", reason=repr(task.exception()))

    def _sends(self) -> "list[asyncio.Task[Any]]":
        return [task for task in self._tasks if task.get_name() == "send"]

    def _spawn_send(self, effect: Send) -> None:
        in_flight = self._in_flight.get(effect.to, 0)
        if self._transport is None or in_flight >= IN_FLIGHT_MAX:
            return
        self._in_flight[effect.to] = in_flight + 1
        self._spawn(self._send(self._transport, effect), name="send")

    async def _send(self, transport: Transport, effect: Send) -> None:
        self.metrics.messages_sent.inc()
        try:
            answer = await transport.send(effect.to, effect.message)
        except DovetailError:
            self.metrics.messages_lost.inc()
            return
        finally:
            self._in_flight[effect.to] -= 1
        if answer is not None:
            self.do(lambda now: self.election.on_message(answer, now_ms=now))

    async def _receive(self, message: Message) -> Message | None:
        if not self._running:
            return None
        self.metrics.messages_received.inc()
        reply: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()
        self._work(lambda now: self.election.on_message(message, now_ms=now), reply)
        return await reply

    def _life_of(self, name: MemberName) -> Incarnation | None:
        heard = self._shared_log.state.heard_of(name)
        return None if heard is None else heard.incarnation

    # --- the shared log -------------------------------------------------------------------------

    def _on_entry(self, entry: Entry) -> None:
        if not self._running:
            return
        if isinstance(entry.record, Claim) and entry.counts:
            self.metrics.elections.inc()
        self.do(lambda now: self.election.on_record(entry.record, counts=entry.counts, now_ms=now))
        long = self._shared_log.untrimmed_count > TRIM_RECORDS
        if long and self._leadership is not None and not self._trimming:
            self._trimming = True
            self._spawn(self._trim())

    async def _announce(self, position: Position | None, source: str | None) -> None:
        where = None if position is None else dict(position)
        try:
            await self._shared_log.append(
                Announce(self.me.name, self.me.incarnation, where, source)
            )
        except DovetailError as error:
            raise Unavailable(
                f"{self.me.name} cannot announce itself in the shared log, so no other member "
                f"would know of it; it does not start. {error}"
            ) from error

    async def _append_and_tell(self, record: Record) -> None:
        outcome = AppendOutcome.ACCEPTED
        try:
            await self._shared_log.append(record)
        except Fenced:
            outcome = AppendOutcome.REFUSED
        except DovetailError as error:
            _log.warning("the shared log was not written", reason=str(error))
            outcome = AppendOutcome.UNKNOWN
        self.do(lambda now: self.election.on_appended(record, outcome, now_ms=now))

    async def _renew(self, effect: Renew) -> None:
        with suppress(DovetailError):
            await self._append_report(effect.term, received=effect.received, busy=effect.busy)

    async def _report(self, term: Term, position: Position | None) -> None:
        await self._append_report(term, position=None if position is None else dict(position))

    async def _append_report(self, term: Term, **said: Any) -> None:
        self._sequence += 1
        report = Report(term, self.me.name, self.me.incarnation, self._sequence, **said)
        outcome = AppendOutcome.UNKNOWN
        try:
            await self._shared_log.append(report)
            outcome = AppendOutcome.ACCEPTED
            self.metrics.reports.inc()
        except Fenced:
            outcome = AppendOutcome.REFUSED
            raise
        finally:
            self.do(lambda now: self.election.on_appended(report, outcome, now_ms=now))

    async def _trim(self) -> None:
        try:
            await self._shared_log.trim()
        except DovetailError as error:
            _log.warning("the shared log was not trimmed", reason=str(error))
        finally:
            self._trimming = False

    async def _end(self) -> None:
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
        if self._campaigner is not None:
            await self._campaigner.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._transport is not None:
            await self._transport.close()
        await self._shared_log.close()
