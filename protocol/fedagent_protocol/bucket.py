"""A token bucket: what may happen at once, and how often after that."""


class TokenBucket:
    """Holds `size` tokens at most and gains `per_s` in each second; it is full at first.

    A clock that goes back adds nothing and takes nothing.
    """

    # No dataclass: that imports `inspect`, and the small wrapper of every broker needs this too.
    __slots__ = ("_at", "_tokens", "per_s", "size")

    def __init__(self, size: float, per_s: float) -> None:
        self.size, self.per_s = size, per_s
        self._tokens = size
        self._at: float | None = None

    def take(self, now: float) -> bool:
        """Take a token; False if there is none."""
        since = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        self._tokens = min(self.size, self._tokens + since * self.per_s)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
