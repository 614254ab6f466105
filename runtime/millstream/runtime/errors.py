"""The error tree. A class says what the caller does next; the message is fact, value, limit.

    MillstreamError
    ├── DefinitionError (TypeError)      mend the class that is named, with file and line
    ├── ConfigError (ValueError)         mend the option that is named
    ├── CallError                        one call failed; the connection and other calls go on
    │   ├── CallTimeout (TimeoutError)   unknown outcome: retry only what may run twice
    │   │   └── ActivationTimeout        surely not executed: `on_activate` took too long
    │   ├── CallCycle                    break the cycle, or make a grain reentrant
    │   ├── GrainError                   the callee raised a type that is not known here
    │   ├── NotRemote (AttributeError)   call one of the methods that the message lists
    │   ├── NotAllowed                   surely not executed: connect as the message says
    │   ├── NotHosted                    surely not executed: no silo can run it, mend the programs
    │   ├── Rejected                     surely not executed: retry is safe
    │   └── Overloaded                   surely not executed: retry later
    ├── ClusterError
    │   ├── SiloUnavailable              silo gone; `may_have_run` False: retry is safe
    │   └── NotInCluster                 start or connect first
    ├── StorageError
    │   ├── Conflict                     read again, then decide
    │   ├── Corrupt                      restore the row that is named: a retry does not help
    │   └── StorageUnavailable           retry later
    └── StreamError                      `accepted_events`: the first so many were published
        ├── EnqueueFailed                adapters raise it: a prefix is stored; publishers see why
        ├── QueueFull                    publish later, or slower
        ├── QueueFenced                  another owner has a higher epoch: stop for good
        ├── QueueUnavailable             retry later
        ├── StaleMapper                  read the mapper again, then publish
        ├── PublishUnknown               may have been accepted: send the same sequence again
        ├── CursorTooOld                 the position is no longer stored
        └── SubscriptionFaulted          resume or remove the subscription

Invariants: every class is rebuilt from `args` and `__dict__` without `__init__` (errors cross the
wire that way), so attributes hold plain values only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = [
    "ActivationTimeout",
    "CallCycle",
    "CallError",
    "CallTimeout",
    "ClusterError",
    "ConfigError",
    "Conflict",
    "Corrupt",
    "CursorTooOld",
    "DefinitionError",
    "EnqueueFailed",
    "GrainError",
    "MillstreamError",
    "NotAllowed",
    "NotHosted",
    "NotInCluster",
    "NotRemote",
    "Overloaded",
    "PublishUnknown",
    "QueueFenced",
    "QueueFull",
    "QueueUnavailable",
    "Rejected",
    "SiloUnavailable",
    "StaleMapper",
    "StorageError",
    "StorageUnavailable",
    "StreamError",
    "SubscriptionFaulted",
]


class MillstreamError(Exception):
    """Base of every error that Millstream raises on purpose.

    Every error can be pickled and copied, whatever its `__init__` takes.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args), self.__dict__ or None


class DefinitionError(MillstreamError, TypeError):
    """A class cannot be a grain, state or stream item as it is written."""


class ConfigError(MillstreamError, ValueError):
    """An option, or two options together, cannot work."""


class CallError(MillstreamError):
    """One call failed."""


class CallTimeout(CallError, TimeoutError):
    """The deadline of a call passed. Whether the callee did its work is unknown."""


class ActivationTimeout(CallTimeout):
    """`on_activate` did not end in time: the grain did not start, and the call never ran."""


class CallCycle(CallError):
    """The target waits, through a chain of calls, for this very call."""

    path: tuple[str, ...]

    def __init__(self, *path: str) -> None:
        self.path = path
        super().__init__(" → ".join(path) + ": each waits for the next")


class GrainError(CallError):
    """The callee raised an exception whose type is not known here.

    Attributes: `type_name`, the qualified name; `message`, its text.
    """

    type_name: str
    message: str

    def __init__(self, type_name: str, message: str) -> None:
        self.type_name = type_name
        self.message = message
        super().__init__(f"{type_name}: {message}")


class NotRemote(CallError, AttributeError):
    """The name exists on the grain class, or not at all, but cannot be called from outside."""


class NotAllowed(CallError):
    """The method is not open to this caller. It did not run."""


class NotHosted(CallError):
    """Nobody can run the call: no active silo hosts the grain type, or it has no such method.

    It did not run, and will not before another silo joins, or the programs agree.
    """


class Rejected(CallError):
    """The call was refused before it ran: its silo stops, or its grain moves faster than calls."""


class Overloaded(CallError):
    """A named limit was reached; the call did not run."""

    limit_name: str
    limit: int

    def __init__(self, what: str, limit_name: str, limit: int) -> None:
        self.limit_name = limit_name
        self.limit = limit
        super().__init__(f"{what}: {limit_name} is {limit}")


class ClusterError(MillstreamError):
    """The cluster cannot do what was asked."""


class SiloUnavailable(ClusterError):
    """The silo that had the call is gone, or cannot be reached.

    Attributes: `may_have_run`: False if the call surely did not run, so it may be made again; True
    if it was sent, and nobody knows. `silo`: the address of the silo that it was sent to, if its
    connection broke then.
    """

    may_have_run: bool = True
    silo: str = ""

    def __init__(self, what: str = "", *, may_have_run: bool = True, silo: str = "") -> None:
        self.may_have_run = may_have_run
        self.silo = silo
        super().__init__(what)


class NotInCluster(ClusterError):
    """This silo or client is not started, or has been stopped or evicted."""


class StorageError(MillstreamError):
    """A state store could not do what was asked."""


class Conflict(StorageError):
    """The stored row is not the one that the write expected."""


class Corrupt(StorageError):
    """A stored row is damaged, older than it was, or contradicts another row.

    The text names the row, the contradiction, and what an operator can do.
    """


class StorageUnavailable(StorageError):
    """The store did not answer; whether the write happened may be unknown."""


class StreamError(MillstreamError):
    """A stream, queue or subscription cannot do what was asked.

    Attributes: `accepted_events`: of a publish of several events, how many were stored before it
    failed: the first ones, so go on behind them.
    """

    accepted_events: int = 0


class EnqueueFailed(StreamError):
    """Raised by a queue adapter: a prefix of a list of messages is stored, and why no more.

    Attributes: `accepted`: the tokens (or None) of the stored prefix; `cause`.
    """

    accepted: Sequence[Any]
    cause: StreamError

    def __init__(self, accepted: Sequence[Any], cause: StreamError) -> None:
        self.accepted = accepted
        self.cause = cause
        super().__init__(
            f"{len(accepted)} messages are stored, then {type(cause).__name__}: {cause}"
        )


class QueueFull(StreamError):
    """The queue is at its limit and stayed so for the whole enqueue wait."""


class QueueFenced(StreamError):
    """Another owner has a higher epoch: this receiver or agent stops for good."""


class QueueUnavailable(StreamError):
    """The queue's provider did not answer."""


class StaleMapper(StreamError):
    """The message was mapped with an older queue layout than the provider has."""


class PublishUnknown(StreamError):
    """The event may or may not have been accepted."""


class CursorTooOld(StreamError):
    """Messages behind the position asked for are gone: the provider keeps them no more.

    Args:
        what: text for people.
        first: where reading goes on: the token of the oldest message that is kept behind the
            position. Every message that is gone is below `first`, and every one that is kept is
            at `first` or above it. None: nothing is kept. Give it by name; a token in place of
            `what` raises TypeError.
    """

    first: Any = None

    def __init__(self, what: str = "", *, first: Any = None) -> None:
        if not isinstance(what, str):
            raise TypeError(
                f"CursorTooOld({what!r}): the first argument is a text; write "
                "CursorTooOld(text, first=the token of the oldest message that is kept)"
            )
        self.first = first
        super().__init__(what)


class SubscriptionFaulted(StreamError):
    """The subscription was given up and waits for a person."""


def _restore(cls: type[MillstreamError], args: tuple[Any, ...]) -> MillstreamError:
    error = cls.__new__(cls, *args)
    error.args = args  # OSError, the base of TimeoutError, leaves this to `__init__`
    return error
