"""What each command of `millstream ledger` does; loaded when one is given."""

from __future__ import annotations

import argparse
from collections.abc import Coroutine
from typing import Any, Protocol

from .bookies import show_bookies
from .listing import show_list
from .reading import read_entries
from .recovering import recover_ledger
from .showing import show_one
from .verifying import verify_directories

__all__ = ["ACTIONS"]


class Act(Protocol):
    """Does what the arguments say; the exit code."""

    def __call__(self, arguments: argparse.Namespace, /) -> Coroutine[Any, Any, int]: ...


ACTIONS: dict[str, Act] = {
    "ls": show_list,
    "show": show_one,
    "read": read_entries,
    "verify": verify_directories,
    "recover": recover_ledger,
    "bookies": show_bookies,
}
