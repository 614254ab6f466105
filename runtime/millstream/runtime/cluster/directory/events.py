"""What the directory's range is told (events), and what it wants done (actions).

Owns: plain values, nothing else. See `range` for what they mean together.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millstream.runtime.cluster.ring import Segment
from millstream.runtime.cluster.table import TableView

from .partition import Entry

__all__ = [
    "Action",
    "Ask",
    "EndDuplicate",
    "Failed",
    "GiveUp",
    "Lookup",
    "NotReached",
    "QuestionReceived",
    "RecoveredRow",
    "Refresh",
    "Register",
    "Rows",
    "SendAnswer",
    "SurvivorsAsked",
    "Sweep",
    "Swept",
    "Told",
    "Unregister",
    "ViewApplied",
    "Withdrawn",
]

RecoveredRow = tuple[str, str, int, int]  # grain type, key, activation id, version


class Register(msgspec.Struct, frozen=True):
    """May this activation be the grain's one?"""

    kind: str
    key: str
    silo: str
    activation_id: int


class Lookup(msgspec.Struct, frozen=True):
    """Where is the grain?"""

    kind: str
    key: str


class Unregister(msgspec.Struct, frozen=True):
    """The activation ends."""

    kind: str
    key: str
    silo: str
    activation_id: int


Question = Register | Lookup


# -- events


class ViewApplied(msgspec.Struct, frozen=True):
    """A view of the membership, newer or not."""

    view: TableView


class QuestionReceived(msgspec.Struct, frozen=True):
    """A question, and the version of the asker's view."""

    ticket: int
    question: Question
    version: int


class Withdrawn(msgspec.Struct, frozen=True):
    """Nobody waits for the answer any more."""

    ticket: int


class NotReached(msgspec.Struct, frozen=True):
    """The table could not be read up to a version that was asked for."""

    version: int


class Rows(msgspec.Struct, frozen=True):
    """Some of the registered activations of a survivor."""

    silo: str
    round: int
    rows: Sequence[RecoveredRow]


class Told(msgspec.Struct, frozen=True):
    """A survivor has sent all that it has."""

    silo: str
    round: int


class Failed(msgspec.Struct, frozen=True):
    """A survivor could not be asked; `is_wrong`: it can be reached, and answers with an error."""

    silo: str
    round: int
    is_wrong: bool


class SurvivorsAsked(msgspec.Struct, frozen=True):
    """Another silo, or this one, gains a range at this version and asks for our activations."""

    version: int


class Swept(msgspec.Struct, frozen=True):
    """Others had the loop: the sweep may go on."""


# -- actions


class SendAnswer(msgspec.Struct, frozen=True):
    """The answer: the entry, None, or an entry without a silo: not ours at that version."""

    ticket: int
    entry: Entry | None


class Refresh(msgspec.Struct, frozen=True):
    """Read the table until it has this version, or tell that it is `NotReached`."""

    version: int


class Ask(msgspec.Struct, frozen=True):
    """Ask a survivor for its activations in the segments, after a pause."""

    silo: str
    round: int
    segments: Sequence[Segment]
    after_s: float


class EndDuplicate(msgspec.Struct, frozen=True):
    """Two activations of one grain were found: this one ends."""

    kind: str
    key: str
    loser: Entry


class GiveUp(msgspec.Struct, frozen=True):
    """A survivor answered with nothing but errors: what it has in the range is not known."""

    silo: str
    round: int


class Sweep(msgspec.Struct, frozen=True):
    """Entries are to be swept: come back with `Swept` when others had the loop."""


Action = SendAnswer | Refresh | Ask | EndDuplicate | GiveUp | Sweep
