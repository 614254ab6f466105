"""The events that the directory's range receives, and the actions that it returns.

This module contains only plain values. `range` explains how they work together.
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
    """A question: may this activation be the one activation of the grain?

    If a former silo is given, the activation continues that one, and may only replace its entry.
    """

    kind: str
    key: str
    silo: str
    activation_id: int
    former_silo: str = ""
    former_id: int = 0


class Lookup(msgspec.Struct, frozen=True):
    """A question: which silo has the grain?"""

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
    """A membership view, newer or not."""

    view: TableView


class QuestionReceived(msgspec.Struct, frozen=True):
    """A question, with the version of the asking silo's view."""

    ticket: int
    question: Question
    version: int


class Withdrawn(msgspec.Struct, frozen=True):
    """No caller waits for the answer any more."""

    ticket: int


class NotReached(msgspec.Struct, frozen=True):
    """The table could not be read up to a version that was requested."""

    version: int


class Rows(msgspec.Struct, frozen=True):
    """Some of the registered activations of a survivor."""

    silo: str
    round: int
    rows: Sequence[RecoveredRow]


class Told(msgspec.Struct, frozen=True):
    """A survivor has sent all of its registered activations."""

    silo: str
    round: int


class Failed(msgspec.Struct, frozen=True):
    """A survivor could not be asked.

    `is_wrong` means that it is reachable but answers with an error.
    """

    silo: str
    round: int
    is_wrong: bool


class SurvivorsAsked(msgspec.Struct, frozen=True):
    """A silo gains a range at this version, and asks for this silo's activations.

    It may be this silo itself.
    """

    version: int


class Swept(msgspec.Struct, frozen=True):
    """The event loop has run other callbacks, so the sweep may continue."""


# -- actions


class SendAnswer(msgspec.Struct, frozen=True):
    """Send an answer: the entry, or None.

    An entry without a silo means that this silo does not own the grain at that version.
    """

    ticket: int
    entry: Entry | None


class Refresh(msgspec.Struct, frozen=True):
    """Read the table until it has this version, or report that it is `NotReached`."""

    version: int


class Ask(msgspec.Struct, frozen=True):
    """Ask a survivor for its activations in the segments, after a pause."""

    silo: str
    round: int
    segments: Sequence[Segment]
    after_s: float


class EndDuplicate(msgspec.Struct, frozen=True):
    """End this activation, because two activations of one grain were found, or forget this client,
    because it has attached to another gateway.
    """

    kind: str
    key: str
    loser: Entry


class GiveUp(msgspec.Struct, frozen=True):
    """A survivor answered only with errors. Its activations in the range remain unknown."""

    silo: str
    round: int


class Sweep(msgspec.Struct, frozen=True):
    """Return with the event `Swept` once the event loop has run other callbacks."""


Action = SendAnswer | Refresh | Ask | EndDuplicate | GiveUp | Sweep
