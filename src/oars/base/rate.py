"""Token-bucket rate limiter."""

from __future__ import annotations

from collections.abc import Callable


class TokenBucket:
    """`rate` tokens per second; at most `burst` are saved up."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._tokens, self._updated = burst, clock()

    def _refill(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._updated) * self._rate)
        self._updated = now

    def reserve(self) -> float:
        """Take the next token, even a future one. Returns the seconds until it is available."""
        self._refill()
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._rate)

    @property
    def backlog(self) -> float:
        """Seconds until the next free token."""
        self._refill()
        return max(0.0, (1.0 - self._tokens) / self._rate)
