"""Log lines about damaged rows, for code that continues without these rows.

This module owns `DamageLog`. Its users find the damaged rows and decide how to continue. Each
damaged row is named once, and again only if it was whole in between. The number of rows that are
named is limited.
"""

from __future__ import annotations

import logging

from .errors import Corrupt

__all__ = ["TOLD_MAX", "DamageLog"]

TOLD_MAX = 100
"""Damaged rows that one `DamageLog` names. After that it logs one line about further rows."""


class DamageLog:
    """Names damaged rows in the log, each row once.

    Use it in code that skips a damaged row and continues. After 100 damaged rows it logs one more
    line, which says that there are others.

    Args:
        log: The logger that gets the lines, at level ERROR.
    """

    __slots__ = ("_log", "_told")

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._told: set[str] = set()

    def tell(self, row: str, error: Corrupt) -> None:
        """Log that a row is damaged, unless the log already says so.

        Args:
            row: The row's name. It identifies the row in later calls.
            error: The damage. Its text names the row and the action for an operator.
        """
        if row in self._told or len(self._told) > TOLD_MAX:
            return
        self._told.add(row)
        if len(self._told) > TOLD_MAX:
            self._log.error("more than %d rows are damaged; the others are not logged", TOLD_MAX)
            return
        text = (
            "%s; until then the content of the row is unknown, and nothing is deleted because of it"
        )
        self._log.error(text, error)

    def is_whole(self, row: str) -> None:
        """Record that a row is not damaged. If it is damaged later, `tell` logs it again.

        Args:
            row: The row's name, as given to `tell`.
        """
        self._told.discard(row)
