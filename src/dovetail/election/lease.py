"""COORDINATOR: the holder of a lease in the coordination service leads, under its term.

    FOLLOWER   the lease is free, or was not checked for a while   -> CANDIDATE (a campaign)
    CANDIDATE  the lease is taken, with a higher term              -> CLAIMING
    LEADER     the lease ended, or is not certainly held any more  -> FOLLOWER

The members need not reach each other, so two are as safe as seven. The service raises the term in
the same transaction that grants the lease. A holder counts its lease from the moment at which it
sent the keep-alive, and gives up first (`dovetail.coordination.LeaseKeeper`).

Survives: the loss of any member, any cut between members, a pause of the holder. While the
coordination service is away, no new leader is elected, and the leader's lease ends.
"""

import random

from dovetail.election.effects import Campaign, Effect, Release
from dovetail.election.election import Election, Identity, Role, Times
from dovetail.election.fold import LogState
from dovetail.election.identifiers import Term

#: While somebody else holds the lease, it is looked at again after so many timeouts; a lease that
#: ends is noticed sooner, by a watch.
LOOK_AGAIN = (1.0, 2.0)
#: When the lease becomes free, members wait up to so many timeouts, so that not all try at once.
STAGGER = 0.1
#: A campaign without an answer for so many timeouts counts as lost.
CAMPAIGN = 4.0


class LeaseElection(Election):
    """One member's part in elections by lease."""

    def __init__(
        self, me: Identity, times: Times, state: LogState, rng: random.Random, *, now_ms: float
    ) -> None:
        super().__init__(me, times, state, rng, now_ms=now_ms)
        self._try_ms = now_ms
        self._campaign_until_ms = float("inf")
        self._holds = False

    def _reset_timer(self, now_ms: float) -> None:
        self._try_ms = now_ms + self.times.timeout_ms * self._rng.uniform(*LOOK_AGAIN)

    def _algorithm_wake_ms(self) -> float:
        if self.role is Role.LEADER:
            return self.valid_until_ms
        if self.role is Role.CANDIDATE:
            return self._campaign_until_ms
        if self.role is Role.FOLLOWER and self._source_alive:
            return self._try_ms
        return float("inf")

    def _tick(self, now_ms: float) -> list[Effect]:
        if self.role is Role.LEADER and now_ms >= self.valid_until_ms:
            return self._step_down("its lease ended", now_ms)
        if self.role is Role.CANDIDATE and now_ms >= self._campaign_until_ms:
            return self._give_up(now_ms)
        if self.role is Role.FOLLOWER and self._source_alive and now_ms >= self._try_ms:
            self.role = Role.CANDIDATE
            self._campaign_until_ms = now_ms + CAMPAIGN * self.times.timeout_ms
            return [Campaign(self._next_term())]
        return []

    def on_held(self, term: Term, *, valid_until_ms: float, now_ms: float) -> list[Effect]:
        """The lease was taken under `term`."""
        if self._stopped or self.role is not Role.CANDIDATE or not self._source_alive:
            return [Release()]
        self._holds = True
        self.valid_until_ms = valid_until_ms
        return self._claim(term, now_ms)

    def on_kept(self, *, valid_until_ms: float) -> None:
        """The lease was kept alive until then."""
        if self.role in (Role.CLAIMING, Role.LEADER):
            self.valid_until_ms = valid_until_ms

    def on_taken(self, *, now_ms: float) -> list[Effect]:
        """Somebody else holds the lease, or the campaign failed."""
        return self._give_up(now_ms) if self.role is Role.CANDIDATE else []

    def on_lease_lost(self, *, now_ms: float) -> list[Effect]:
        """The lease ended, or is not surely held any more."""
        if self.role is Role.LEADER:
            return self._step_down("its lease ended", now_ms)
        return self._give_up(now_ms) if self.role is Role.CLAIMING else []

    def on_free(self, *, now_ms: float) -> list[Effect]:
        """The lease of another holder is gone."""
        self._try_ms = now_ms + self.times.timeout_ms * self._rng.uniform(0.0, STAGGER)
        return []

    def _on_led(self, now_ms: float) -> list[Effect]:
        return []

    def _on_stepped_down(self, now_ms: float) -> list[Effect]:
        held, self._holds = self._holds, False
        return [Release()] if held else []
