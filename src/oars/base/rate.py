"""So much and no more of what is only nice to have."""

from __future__ import annotations

from collections.abc import Callable, Hashable


class TokenBucket:
    """So many a second, whoever asks; what nobody took is saved for later, up to `saved`."""

    def __init__(self, each_second: float, saved: float, clock: Callable[[], float]) -> None:
        self._each_second = each_second
        self._most = saved
        self._clock = clock
        self._left, self._when = saved, clock()

    def take(self) -> bool:
        """Whether there is one left; it is taken then."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._when) * self._each_second)
        self._when = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class PollSpread:
    """Those that wait and look up now and then: the more they are the more seldom each, so many a second in all."""

    def __init__(self, each_second: float) -> None:
        self._each_second = each_second
        self._waiting: set[Hashable] = set()

    def pause(self, who: Hashable, shortest: float) -> float:
        """How long this one, who waits from now on, may wait until it looks up."""
        self._waiting.add(who)
        return max(shortest, self.turn)

    @property
    def turn(self) -> float:
        """Seconds in which each of them looks up once."""
        return len(self._waiting) / self._each_second

    def end(self, who: Hashable) -> None:
        self._waiting.discard(who)
