"""The function of each command of `millstream ledger`; loaded when a command is given."""

from __future__ import annotations

import argparse
from collections.abc import Coroutine
from typing import Any, Protocol

from .bookies import show_bookies
from .list_command import show_list
from .read_command import read_entries
from .recover_command import recover_ledger
from .show_command import show_one
from .verify_command import verify_directories

__all__ = ["ACTIONS"]


class Act(Protocol):
    """A function that runs a command with its arguments and returns the exit code."""

    def __call__(self, arguments: argparse.Namespace, /) -> Coroutine[Any, Any, int]: ...


ACTIONS: dict[str, Act] = {
    "ls": show_list,
    "show": show_one,
    "read": read_entries,
    "verify": verify_directories,
    "recover": recover_ledger,
    "bookies": show_bookies,
}
