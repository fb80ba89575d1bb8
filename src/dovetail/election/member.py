"""A member of a cluster: takes part in elections, and knows when it leads and when it has lost.

    async with ClusterMember(...) as member:
        leadership = await member.lead()          waits until this member leads
        leadership.term                           pass it to the store that you write to
        leadership.valid                          False from the moment at which it is lost
        await leadership.confirm()                raises `Fenced` if somebody leads after you
        await leadership.lost.wait()

Nothing here knows of a stream: the drivers of a team also elect their master with it.

The machine decides (`election`). The member performs its effects: it syncs a vote before it sends
anything that depends on it, sends messages, appends records and watches the time. A leadership is
lost as soon as the machine says so, whatever is still waiting to be performed. If the disk refuses
a vote, the member logs an error and ends: it must not send anything more.
"""

import asyncio
import random
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from dovetail.background import Alarm, Tasks, is_cancelled
from dovetail.clock import Clock, SystemClock
from dovetail.election import effects
from dovetail.election.bully import BullyElection
from dovetail.election.campaign import Campaigner
from dovetail.election.effects import Effect, Vote
from dovetail.election.election import AppendOutcome, Election, Identity, Role, Times
from dovetail.election.fold import Claim, Leave, Record, Register, Report, Twins
from dovetail.election.identifiers import Algorithm, Incarnation, MemberName, Position, Term
from dovetail.election.leadership import Leadership, MemberStatus
from dovetail.election.lease import LeaseElection
from dovetail.election.majority import MajorityElection
from dovetail.election.messages import Message
from dovetail.election.metrics import ElectionMetrics
from dovetail.election.shared_log import Entry, SharedLog
from dovetail.election.transport import Transport
from dovetail.election.vote_file import VoteFile
from dovetail.errors import DovetailError, Fenced, InvalidSetting, Unavailable
from dovetail.foreign import described
from dovetail.logging import get_logger

#: The leader trims the shared log when a new member would have to read so many records.
TRIM_RECORDS = 10_000
#: Messages to one member that wait for an answer; what is more is lost, as a network may do.
IN_FLIGHT_MAX = 8
#: Longest time for the farewell at the end.
FAREWELL_S_MAX = 1.0
#: How often a lease that is held is looked at, in timeouts.
LEASE_LOOK = 0.1

_log = get_logger("election")


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
        metrics: ElectionMetrics | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.me = Identity(name, Incarnation(uuid.uuid4().hex))
        self.algorithm = algorithm
        self.metrics = metrics or ElectionMetrics()
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
        self._tasks = Tasks()
        self._sends = Tasks()
        self._in_flight: dict[MemberName, int] = {}
        self._timer: Alarm | None = None
        self._sequence = 0
        self._running = False
        self._ended = False
        self._trimming = False
        self._reported: tuple[Role, Term, MemberName | None] | None = None
        self._twins = Twins(name, self.me.incarnation, timeout_ms=times.timeout_ms)

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

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self, position: Position | None = None, source: str | None = None) -> None:
        """Reads the log, registers this member, and takes part in elections.

        `position` is where the stream is now and `source` its name, if this is about a stream.

        Raises `Unavailable` if it cannot register, `Damaged` if the vote file fails its checksum;
        then nothing is left running.
        """
        try:
            vote = await asyncio.to_thread(self._vote_file.read) if self._vote_file else Vote()
            await self._shared_log.open(self._on_entry)
            if self._transport is not None:
                await self._transport.start(self.me, self._receive, self._life_of)
            await self._register(position, source)
        except BaseException:
            await self._end()
            raise

        self.election = self._make_election(vote)
        # Made here: its failures are those of whoever starts the member.
        self._timer = Alarm(self._tick, name="election/tick", of=self.me.name)
        self._running = True
        self._tasks.start(self._perform_all(), name="election/effects")
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
                    await self._sends.finish()
                    await self._shared_log.append(Leave(self.me.name, self.me.incarnation))
        await self._end()

    def do(self, call: Callable[[float], list[Effect]]) -> None:
        """Lets the machine decide, and queues what follows."""
        self._work(call, None)

    async def lead(self) -> Leadership:
        """Waits until this member leads. Raises `Unavailable` if it has failed or is closed."""
        async with self._led:
            await self._led.wait_for(lambda: self._leadership or self.failure or self._ended)
        if self.failure is not None:
            raise Unavailable(f"this member has ended: {self.failure}") from self.failure
        if self._leadership is None:
            raise Unavailable(f"{self.me.name} is closed: it leads no more")
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
            failure=None if self.failure is None else described(self.failure),
            has_twin=self._twins.alive(now_ms=self._clock.monotonic_ms()),
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
        decided = call(self._clock.monotonic_ms())
        for effect in decided:
            if isinstance(effect, effects.Lead):
                self._on_lead(effect)
            elif isinstance(effect, effects.StepDown):
                self._on_step_down(effect)

        if decided or reply is not None:
            self._outbox.put_nowait(_Work(decided, reply))
        self._arm()
        self._report_change()

    def _arm(self) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        # One that has failed decides nothing any more: what is due would stay due.
        if not self._running or self.failure is not None:
            return
        wait_ms = max(0.0, self.election.wake_ms() - self._clock.monotonic_ms())
        if self._campaigner is not None:
            wait_ms = min(wait_ms, self._times.timeout_ms * LEASE_LOOK)
        self._timer.set(wait_ms / 1000)

    def _tick(self) -> None:
        if self._campaigner is not None and isinstance(self.election, LeaseElection):
            held_until_ms = self._campaigner.valid_until_ms
            if held_until_ms is not None:
                self.election.on_kept(valid_until_ms=held_until_ms)
        self.do(lambda now: self.election.on_tick(now_ms=now))

    def _on_lead(self, effect: effects.Lead) -> None:
        self._sequence = 0
        if self._leadership is not None:  # Who waits for its end would not hear of this one.
            self._leadership.end()
        self._leadership = Leadership(effect.term, self.election, self._clock, self._report)
        self.metrics.leaderships.inc()
        _log.info("this member leads", member=self.me.name, term=effect.term)
        self._tasks.start(self._wake_leads(), name="election/wake")

    def _on_step_down(self, effect: effects.StepDown) -> None:
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

    def _report_change(self) -> None:
        state, role = self._shared_log.state, self.election.role
        now = (role, state.term, state.leader)
        if now == self._reported:
            return
        self._reported = now

        status = self.status()
        self.metrics.leading.set(role is Role.LEADER)
        self.metrics.term.set(state.term)
        self.metrics.members.set(len(status.members))
        for callback in self.on_change:
            try:
                callback(status)
            except Exception:  # noqa: BLE001 - a user's callback must not end the member
                _log.exception("a callback raised")

    # --- effects ------------------------------------------------------------------------------

    async def _perform_all(self) -> None:
        while True:
            work = await self._outbox.get()
            try:
                await self._perform(work)
            except BaseException as error:
                if is_cancelled():
                    raise
                self._fail(error)
            finally:
                if work.reply is not None and not work.reply.done():
                    work.reply.set_result(None)
                self._outbox.task_done()

    async def _perform(self, work: _Work) -> None:
        for effect in work.effects:
            if isinstance(effect, effects.Persist):
                assert self._vote_file is not None
                await asyncio.to_thread(self._vote_file.write, effect.vote)
            elif isinstance(effect, effects.Send):
                self._start_send(effect)
            elif isinstance(effect, effects.Reply):
                if work.reply is not None and not work.reply.done():
                    work.reply.set_result(effect.message)

            elif isinstance(effect, effects.Append):
                self._tasks.start(self._append(effect.record), name="election/append")
            elif isinstance(effect, effects.Renew):
                self._tasks.start(self._renew(effect), name="election/renew")

            elif isinstance(effect, effects.Campaign):
                assert self._campaigner is not None
                self._tasks.start(
                    self._campaigner.campaign(effect.term_min), name="election/campaign"
                )
            elif isinstance(effect, effects.Release):
                assert self._campaigner is not None
                self._tasks.start(self._campaigner.release(), name="election/release")

    def _fail(self, error: BaseException) -> None:
        """Its vote may not be kept: this member must not say anything any more."""
        self.failure = error
        _log.exception("this member ends: it cannot do what it decided", error, member=self.me.name)
        self.do(lambda now: self.election.on_stop(now_ms=now))
        self._tasks.start(self._wake_leads(), name="election/wake")

    def _start_send(self, effect: effects.Send) -> None:
        in_flight = self._in_flight.get(effect.to, 0)
        if self._transport is None or in_flight >= IN_FLIGHT_MAX:
            return
        self._in_flight[effect.to] = in_flight + 1
        self._sends.start(self._send(self._transport, effect), name="election/send")

    async def _send(self, transport: Transport, effect: effects.Send) -> None:
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
            self.metrics.claims.inc()
        if self.algorithm is not Algorithm.COORDINATOR:
            self._look_for_twin(entry.record)
        self.do(lambda now: self.election.on_record(entry.record, counts=entry.counts, now_ms=now))
        long = self._shared_log.untrimmed_count > TRIM_RECORDS
        if long and self._leadership is not None and not self._trimming:
            self._trimming = True
            self._tasks.start(self._trim(), name="election/trim")

    def _look_for_twin(self, record: Record) -> None:
        if self._twins.on_record(record, now_ms=self._clock.monotonic_ms()):
            _log.error(
                "another process takes part under the name of this member; give each one an "
                "endpoint_host_and_port of its own",
                member=self.me.name,
            )

    async def _register(self, position: Position | None, source: str | None) -> None:
        where = None if position is None else dict(position)
        try:
            await self._shared_log.append(
                Register(self.me.name, self.me.incarnation, where, source)
            )
        except DovetailError as error:
            raise Unavailable(
                f"{self.me.name} cannot register in the shared log, so the other members would "
                f"not know it; it does not start: {error}"
            ) from error

    async def _append(self, record: Record) -> None:
        outcome = AppendOutcome.UNKNOWN
        try:
            await self._shared_log.append(record)
            outcome = AppendOutcome.ACCEPTED
        except Fenced:
            outcome = AppendOutcome.REFUSED
        except DovetailError as error:
            _log.warning("cannot append to the shared log", reason=str(error))
        finally:
            self.do(lambda now: self.election.on_appended(record, outcome, now_ms=now))

    async def _renew(self, effect: effects.Renew) -> None:
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
            _log.warning("cannot trim the shared log", reason=str(error))
        finally:
            self._trimming = False

    async def _end(self) -> None:
        self._running = False
        self._ended = True
        await self._wake_leads()
        if self._timer is not None:
            self._timer.cancel()
        if self._campaigner is not None:
            await self._campaigner.close()
        await self._tasks.stop()
        await self._sends.stop()
        if self._transport is not None:
            await self._transport.close()
        await self._shared_log.close()
