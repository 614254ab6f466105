"""Waiting for SQLite locks with random pauses.

The `busy_timeout` of SQLite backs off in fixed steps. One busy writer then blocks the other
processes for seconds. Short random pauses share the lock fairly. Use this module only in threads
that may block, never on an event loop.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from typing import TypeVar

from millstream.runtime.env import Env
from millstream.runtime.errors import StorageUnavailable

__all__ = ["LockWait", "is_busy"]

T = TypeVar("T")

_PAUSE_MIN_S = 0.0002
_PAUSE_MAX_S = 0.002
_BUSY_CODES = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})


def is_busy(error: sqlite3.Error) -> bool:
    """Return True if another connection holds a lock. Nothing was done, so a retry is safe."""
    # The low byte is the primary code. Errors of the Python module itself have no code.
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF in _BUSY_CODES


class LockWait:
    """Retries an action while SQLite is busy, for at most `lock_wait_s` seconds of pauses."""

    def __init__(self, env: Env, lock_wait_s: float) -> None:
        self._env = env
        self._lock_wait_s = lock_wait_s
        self._never = threading.Event()

    def run(self, what: str, action: Callable[[], T]) -> T:
        """Return the action's result; run it again while the lock is not free. Raises
        StorageUnavailable, whose text begins with `what`, after the longest wait."""
        waited_s = 0.0
        while True:
            try:
                return action()
            except sqlite3.Error as error:
                if not is_busy(error):
                    raise
                if waited_s >= self._lock_wait_s:
                    raise StorageUnavailable(
                        f"{what}: other processes held the lock for {waited_s:.1f} s,"
                        f" lock_wait_s is {self._lock_wait_s}"
                    ) from error
            pause_s = self._env.uniform(_PAUSE_MIN_S, _PAUSE_MAX_S)
            self._never.wait(pause_s)
            waited_s += pause_s
