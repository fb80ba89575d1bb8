"""A simulated process that can pause: what arrives meanwhile happens when it wakes."""

from collections.abc import Callable


class Pausable:
    """It lives, one life after another, or stands still."""

    def __init__(self) -> None:
        self.alive = False
        self.paused = False
        self.life = 0
        self._held_back: list[Callable[[], None]] = []

    def deliver(self, life: int, action: Callable[[], None]) -> None:
        """Runs an action of this process, now or when it wakes; never in a later life."""
        if not self.alive or life != self.life:
            return
        if self.paused:
            self._held_back.append(lambda: self.deliver(life, action))
        else:
            action()

    def pause(self) -> None:
        self.paused = True

    def wake(self) -> None:
        self.paused = False
        held, self._held_back = self._held_back, []
        for action in held:
            action()
