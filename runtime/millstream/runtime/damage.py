"""Rows that are damaged, as the log names them while others go on without them.

Owns: `DamageLog`. Not: finding such rows (whoever opens them), what is done without them.
Invariants: each row is named once, and again only after it was whole in between; how many are named
is limited.
"""

from __future__ import annotations

import logging

from .errors import Corrupt

__all__ = ["TOLD_MAX", "DamageLog"]

TOLD_MAX = 100
"""Damaged rows that one object names in the log; of further ones it says only that there are
some."""


class DamageLog:
    """The damaged rows that one part of a process has met; `log`: where they are named."""

    __slots__ = ("_log", "_told")

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._told: set[str] = set()

    def tell(self, row: str, error: Corrupt) -> None:
        """Say what is wrong with a row, unless that was said of what is called so."""
        if row in self._told or len(self._told) > TOLD_MAX:
            return
        self._told.add(row)
        if len(self._told) > TOLD_MAX:
            self._log.error("more than %d rows are damaged; others are not named here", TOLD_MAX)
            return
        text = "%s; until then what the row says is unknown, and nothing is deleted because of it"
        self._log.error(text, error)

    def is_whole(self, row: str) -> None:
        """A row is not damaged, or not any more."""
        self._told.discard(row)
