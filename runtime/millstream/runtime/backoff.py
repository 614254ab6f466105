"""How long to wait before the next attempt.

Owns: the arithmetic. Not: counting attempts, waiting, or the chance (the caller does).
Invariant: every delay is in [whole / 2, whole), and whole never passes `ceiling_s`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from .errors import ConfigError
from .options import check_fields

__all__ = ["Backoff"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits before retries: `first_s`, then longer by `factor` each time, up to `ceiling_s`.

    Chance takes up to a half of each wait, so that many callers do not retry at the same moment.
    Raises `ConfigError` if a value is not valid.

    Attributes:
        first_s: the first wait, in seconds; above 0 and at most `ceiling_s`.
        factor: growth per attempt; at least 1.
        ceiling_s: the longest wait, in seconds.
    """

    first_s: float = 0.1
    factor: float = field(default=2.0, metadata={"min": 1})
    ceiling_s: float = 30.0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.first_s > self.ceiling_s:
            raise ConfigError(
                f"first_s is {self.first_s} and ceiling_s is {self.ceiling_s}; "
                "first_s must be at most ceiling_s"
            )

    def delay_s(self, attempt: int, roll: float) -> float:
        """Seconds to wait after `attempt` (1, 2, ...) failed; `roll` is a chance in [0, 1)."""
        assert attempt >= 1, f"attempt is {attempt}; attempts count from 1"
        assert 0 <= roll < 1, f"roll {roll} is outside [0, 1)"
        return self.whole_s(attempt) * (0.5 + roll / 2)

    def whole_s(self, attempt: int) -> float:
        """The longest that `delay_s` may be; for who is alone, and needs no chance."""
        growths = attempt - 1
        # compared as logarithms: the power itself overflows when attempts never end
        if growths * math.log(self.factor) >= math.log(self.ceiling_s / self.first_s):
            return self.ceiling_s
        return min(self.ceiling_s, self.first_s * self.factor**growths)
