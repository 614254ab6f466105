"""The errors of Millstream. The class of an error tells the caller what to do next.

    MillstreamError
    ├── DefinitionError (TypeError)      correct the class that the message names
    ├── ConfigError (ValueError)         correct the option that the message names
    ├── CallError                        one call failed; the connection and other calls go on
    │   ├── CallTimeout (TimeoutError)   unknown outcome: retry only calls that may run twice
    │   │   └── ActivationTimeout        not executed: `on_activate` took too long
    │   ├── CallCycle                    break the cycle, or make a grain reentrant
    │   ├── GrainError                   the callee raised a type that is unknown here
    │   ├── ResultsAborted               the generator is gone: call its method again
    │   ├── NotRemote (AttributeError)   call one of the methods that the message lists
    │   ├── NotAllowed                   not executed: connect as the message says
    │   ├── NotHosted                    not executed: no silo can run it
    │   │   ├── NoSuitableSilo           not executed: no silo has the labels that it requires
    │   │   ├── VersionNotHosted         not executed: all silos host earlier versions of the type
    │   │   └── ObserverGone             not executed: the client no longer has the observer
    │   ├── PlacementFailed              not executed: correct the placement strategy
    │   ├── Rejected                     not executed: a retry is safe
    │   └── Overloaded                   not executed: retry later
    ├── ClusterError
    │   ├── ClientUnavailable            not executed: the client of the observer is gone
    │   ├── SiloUnavailable              silo gone; `may_have_run` False: a retry is safe
    │   └── NotInCluster                 start or connect first
    ├── StorageError
    │   ├── Conflict                     read again, then decide
    │   ├── Corrupt                      restore the row that is named: a retry does not help
    │   ├── StateTooNew                  not executed: start silos with the version that stored it
    │   └── StorageUnavailable           retry later
    └── StreamError                      `accepted_events`: the first so many were published
        ├── EnqueueFailed                raised by adapters: only a prefix is stored
        ├── QueueFull                    publish later, or slower
        ├── QueueFenced                  another owner has a higher epoch: stop for good
        ├── QueueUnavailable             retry later
        ├── StaleMapper                  read the mapper again, then publish
        ├── PublishUnknown               may have been accepted: a retry may store it twice
        ├── CursorTooOld                 the position is no longer stored
        └── SubscriptionFaulted          resume or remove the subscription

A message has the fact, the value, and the limit. Errors cross the wire by `args` and `__dict__`:
the receiver rebuilds them without `__init__`, so their attributes must hold plain values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = [
    "ActivationTimeout",
    "CallCycle",
    "CallError",
    "CallTimeout",
    "ClientUnavailable",
    "ClusterError",
    "ConfigError",
    "Conflict",
    "Corrupt",
    "CursorTooOld",
    "DefinitionError",
    "EnqueueFailed",
    "GrainError",
    "MillstreamError",
    "NoSuitableSilo",
    "NotAllowed",
    "NotHosted",
    "NotInCluster",
    "NotRemote",
    "ObserverGone",
    "Overloaded",
    "PlacementFailed",
    "PublishUnknown",
    "QueueFenced",
    "QueueFull",
    "QueueUnavailable",
    "Rejected",
    "ResultsAborted",
    "SiloUnavailable",
    "StaleMapper",
    "StateTooNew",
    "StorageError",
    "StorageUnavailable",
    "StreamError",
    "SubscriptionFaulted",
    "VersionNotHosted",
]


class MillstreamError(Exception):
    """The base of every error that Millstream raises on purpose.

    Every error can be pickled and copied. A caller catches a fresh exception, not the callee's
    object. Its type is a builtin, one of Millstream's errors, or a type that a module of the
    registered grains defines or imports; any other type arrives as `GrainError`. The callee's
    traceback is a note of the exception.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy the error by its `args` and attributes, whatever its `__init__` takes."""
        return _restore, (type(self), self.args), self.__dict__ or None


class DefinitionError(MillstreamError, TypeError):
    """A class cannot be a grain, state or stream item as it is written.

    Raised when the class is defined, or when a silo is built from it. Correct the class. The
    message has the file and line.
    """


class ConfigError(MillstreamError, ValueError):
    """An option, or two options together, cannot work.

    Correct the option that the message names.
    """


class CallError(MillstreamError):
    """One call failed, and other calls go on.

    `CallError` itself is raised when a chain of calls reaches `RuntimeOptions.chain_turns_max`.
    """


class CallTimeout(CallError, TimeoutError):
    """The deadline of a call has passed.

    It is unknown whether the callee did its work, so repeat only calls that may run twice.
    """


class ActivationTimeout(CallTimeout):
    """The activation of the grain took too long, so the call did not run.

    Reading the grain's states and `on_activate` together have a limit,
    `RuntimeOptions.activation_timeout_s`. Repeat the call, or make the grain start faster.
    """


class CallCycle(CallError):
    """The target waits, through a chain of calls, for the call itself.

    Break the cycle, or make one of its grains reentrant.

    Attributes:
        path: The turns of the cycle, in the order of their calls.
    """

    path: tuple[str, ...]

    def __init__(self, *path: str) -> None:
        self.path = path
        super().__init__(" → ".join(path) + ": each turn waits for the next")


class GrainError(CallError):
    """The callee raised an exception of a type that is unknown in this process.

    Attributes:
        type_name: The type's module and qualified name, such as `shop.orders.SoldOut`. For an error
            of Millstream: `millstream.` and the class name, such as `millstream.LeaseLost`.
        message: The text of the exception.
    """

    type_name: str
    message: str

    def __init__(self, type_name: str, message: str) -> None:
        self.type_name = type_name
        self.message = message
        super().__init__(f"{type_name}: {message}")


class ResultsAborted(CallError):
    """A generator of a grain ended before its last item, so the rest of its items is lost.

    The grain was deactivated or moved, its silo crashed, or no item was asked for during
    `RuntimeOptions.results_idle_s`. The items that arrived before are correct and in order. Call
    the method again, with arguments that say where to continue.
    """


class NotRemote(CallError, AttributeError):
    """The name cannot be called through a reference.

    The grain class has no such method, or the method is private or a stream handler. The message
    lists the methods that can be called.
    """


class NotAllowed(CallError):
    """The method is not open to this caller, so the call did not run.

    The message says whether an operator may call it. See `open_to` and `Role`.
    """


class NotHosted(CallError):
    """No silo can run the call, so it did not run.

    Either no active silo hosts the grain type, or the silo's grain class has no such method. Start
    a silo that hosts the type, or run one version of the class on both sides. While silos are being
    restarted, repeat the call.
    """


class NoSuitableSilo(NotHosted):
    """Silos host the grain type, but none has the labels that the type requires.

    The call did not run. Start a silo with these labels, or change `@grain(requires=...)`.
    """


class VersionNotHosted(NotHosted):
    """Silos host the grain type, but only versions that are earlier than the caller's.

    The call did not run. Start silos with the caller's version of the class or a later one. While
    silos are being replaced, repeat the call.

    Attributes:
        wanted: The version of the class or contract through which the call was made.
        hosted: The versions that silos host, sorted.
    """

    wanted: int = 0
    hosted: tuple[int, ...] = ()

    def __init__(self, what: str = "", *, wanted: int = 0, hosted: Sequence[int] = ()) -> None:
        self.wanted = wanted
        self.hosted = tuple(sorted(set(hosted)))
        super().__init__(what)


class ObserverGone(NotHosted):
    """The client lives, but it does not have the observer any more, so the call did not run.

    The context of `Client.observe` has ended. Forget the reference. `ObserverSet` does that itself.
    """


class PlacementFailed(CallError):
    """A placement strategy of the program raised an error, or returned no candidate.

    The call did not run. Correct the function of `@grain(placement=...)` that the message names.
    """


class Rejected(CallError):
    """The call was refused before it ran.

    Its silo is stopping, or its grain moves between silos faster than the call can follow.
    Repeating the call is safe.
    """


class Overloaded(CallError):
    """A named limit was reached, so the call did not run.

    Repeat the call later.

    Attributes:
        limit_name: The name of the limit, such as `waiting_calls_max`.
        limit: Its value.
    """

    limit_name: str
    limit: int

    def __init__(self, what: str, limit_name: str, limit: int) -> None:
        self.limit_name = limit_name
        self.limit = limit
        super().__init__(f"{what}: {limit_name} is {limit}")


class ClusterError(MillstreamError):
    """The cluster cannot do the requested action: for example, a silo cannot join it."""


class ClientUnavailable(ClusterError):
    """The client that has the observer is gone, so the call did not run.

    The client was closed, or no silo has heard of it for `RuntimeOptions.client_lease_s`. Forget
    the reference: `ObserverSet` does that itself. A client that was only cut off for that long, and
    comes back, can be called by its old references again.

    Attributes:
        client: The name of the client, as `Client.address` gives it.
    """

    client: str

    def __init__(self, what: str = "", *, client: str = "") -> None:
        self.client = client
        super().__init__(what)


class SiloUnavailable(ClusterError):
    """The silo that had the call is gone, or cannot be reached.

    Attributes:
        may_have_run: False: the call did not run, so repeating it is safe. True: the call was sent
            and its outcome is unknown, so repeat it only if it may run twice.
        silo: The address of the silo to which the call was sent, if the connection broke after
            that. Else empty.
    """

    may_have_run: bool = True
    silo: str = ""

    def __init__(self, what: str = "", *, may_have_run: bool = True, silo: str = "") -> None:
        self.may_have_run = may_have_run
        self.silo = silo
        super().__init__(what)


class NotInCluster(ClusterError):
    """This silo or client is not started, was stopped or closed, or was evicted.

    It is also raised in a grain whose activation has ended, and by a client or silo that is used
    from another event loop. Nothing was sent. Start or connect first, use a silo that runs, or
    await the work that a turn starts before the turn ends.
    """


class StorageError(MillstreamError):
    """A state store could not do the requested action.

    `StorageError` itself is raised for a row that cannot be read as its state. Change the class so
    that it fits the row, or repair the row.
    """


class Conflict(StorageError):
    """The stored row is not the row that the write expected. Nothing was changed.

    Read again, then decide. In a grain, a conflict ends the activation, and the next activation
    reads the stored row.
    """


class Corrupt(StorageError):
    """A stored row is damaged, older than it was before, or contradicts another row.

    The text names the row, the contradiction, and the action for an operator. Stop, and restore the
    row or its file. A retry does not help.
    """


class StateTooNew(StorageError):
    """A later version of the grain type has stored the state, so the call did not run.

    No active silo hosts that version. The row is unchanged. Start silos with the version or a later
    one. While silos are being replaced, repeat the call.

    Attributes:
        stored: The version that has stored the state.
        hosted: The version that the silo of the call hosts.
    """

    stored: int = 0
    hosted: int = 0

    def __init__(self, what: str = "", *, stored: int = 0, hosted: int = 0) -> None:
        self.stored = stored
        self.hosted = hosted
        super().__init__(what)


class StorageUnavailable(StorageError):
    """The store did not answer. It may be unknown whether a write happened.

    Repeat later.
    """


class StreamError(MillstreamError):
    """A stream, queue or subscription cannot do the requested action.

    Attributes:
        accepted_events: After a publish of several events: how many were stored before the failure.
            They are the first ones, so continue with the event after them.
    """

    accepted_events: int = 0


class EnqueueFailed(StreamError):
    """A queue adapter stored only a prefix of a list of messages.

    Adapters raise it. A publisher gets `cause` instead.

    Attributes:
        accepted: The tokens of the stored prefix. A token is None if the adapter has none.
        cause: The error that stopped the adapter.
    """

    accepted: Sequence[Any]
    cause: StreamError

    def __init__(self, accepted: Sequence[Any], cause: StreamError) -> None:
        self.accepted = accepted
        self.cause = cause
        super().__init__(
            f"the adapter stored {len(accepted)} messages, then failed: "
            f"{type(cause).__name__}: {cause}"
        )


class QueueFull(StreamError):
    """The queue was at its limit for the whole wait, so the event was not accepted.

    Publish later, or slower.
    """


class QueueFenced(StreamError):
    """Another owner of the queue has a higher epoch.

    Adapters raise it. The receiver or pulling agent that gets it stops for good.
    """


class QueueUnavailable(StreamError):
    """The provider of the queue did not answer, so the event was not accepted.

    Repeat later.
    """


class StaleMapper(StreamError):
    """The number of queues has changed, and the message was sent to the queue that had its stream
    before.

    Adapters whose queues can be sealed raise it. The runtime maps the message again and retries.
    """


class PublishUnknown(StreamError):
    """It is unknown whether the event was accepted.

    Publishing it again may store it twice.
    """


class CursorTooOld(StreamError):
    """Messages after the requested position are gone, because the provider no longer keeps them.

    Receivers and readers of queues raise it.

    Args:
        what: The text for people.
        first: The token of the oldest kept message after the position, where reading continues.
            Every lost message is below `first`, and every kept message is at `first` or above it.
            None: no message is kept. Pass it by name: a token in place of `what` raises TypeError.
    """

    first: Any = None

    def __init__(self, what: str = "", *, first: Any = None) -> None:
        if not isinstance(what, str):
            raise TypeError(
                f"CursorTooOld({what!r}): the first argument must be a str; write "
                "CursorTooOld(text, first=the token of the oldest message that is kept)"
            )
        self.first = first
        super().__init__(what)


class SubscriptionFaulted(StreamError):
    """The subscription was stopped over an event, and waits for a person.

    This version never raises it.
    """


def _restore(cls: type[MillstreamError], args: tuple[Any, ...]) -> MillstreamError:
    error = cls.__new__(cls, *args)
    error.args = args  # OSError, the base of TimeoutError, sets them in `__init__` only
    return error
