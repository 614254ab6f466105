"""A grain's persistent state. It is loaded before the activation and written on request.

This module owns `state(...)`, `StateField` and `State`. The module `storage` owns the contract of
the stores.

- One state has one write at a time, in the order of the requests.
- The stored value is the value at the time of the request, or of a later request that joined it.
- A write is never cancelled half-way.
- A conflict ends the activation, so the next activation reads the stored row.
- Positions of streams (`cursors`) and unsent parcels (`parcels`) are in the same row, and change in
  the same write.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NoReturn,
    Protocol,
    TypeVar,
    get_type_hints,
    overload,
)

import msgspec

from millstream.runtime.codec.codec import Codec, build_codec
from millstream.runtime.codec.types import show_hint
from millstream.runtime.errors import ConfigError, Conflict, DefinitionError, StorageError
from millstream.runtime.text import show_text

from .markers import add_mark
from .names import check_name
from .parcels import ParcelRow, Parcels, WriteRequest
from .storage import Etag, StateStore
from .upgrades import NO_UPGRADES, StateUpgrades, UpgradeMark, check_from_version
from .versions import FIRST_VERSION

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Cursor", "MovedState", "State", "StateField", "StateOwner", "state", "upgrade"]

log = logging.getLogger("millstream.state")

S = TypeVar("S")
T = TypeVar("T")
UF = TypeVar("UF", bound=Callable[[Any], Any])
Cursor = tuple[int, int, int]


class StoredState(msgspec.Struct, array_like=True):
    """The row: the encoded value (nil after `clear`), stream positions by subscription and queue,
    unsent parcels (`ParcelRow`), and the version of the grain type that has stored the value.

    Rows of version 1 have no version. Older rows have one position for each subscription, of an
    unnamed queue: "".
    """

    data: msgspec.Raw
    cursors: Mapping[str, Cursor | dict[str, Cursor]] = {}
    origin: str = ""
    first: int = 1
    parcels: Sequence[bytes] = ()
    version: int = FIRST_VERSION

    def positions(self) -> dict[str, dict[str, Cursor]]:
        """Return the stream positions, from either form."""
        return {
            subscription: found if isinstance(found, dict) else {OLD_FORM: found}
            for subscription, found in self.cursors.items()
        }


class MovedState(msgspec.Struct, array_like=True, frozen=True):
    """A state on its way to another silo.

    Attributes:
        row: The stored row; None if there is none.
        etag: The etag of the row.
        value: The encoded value, if it differs from that of the row.
        version: The version of the grain type that has encoded `value`.
    """

    row: bytes | None
    etag: Etag | None
    value: bytes | None
    version: int = FIRST_VERSION


ERROR_CHARS_MAX = 1000  # characters of an error in the log
OLD_FORM = ""  # the queue of a position whose queue is unknown
OVER_MAX = 1_000  # ended subscriptions whose positions are not written
NIL = msgspec.msgpack.encode(None)
_decode_row = msgspec.msgpack.Decoder(StoredState).decode
_encode_row = msgspec.msgpack.Encoder().encode


class StateOwner(Protocol):
    """The questions of a state to its activation.

    `version` is the fence of its writes. `check_running()` raises NotInCluster once the silo has
    ended. `on_conflict()` reports that the value in memory is not the stored one. `start_task`
    starts a task that ends with the activation.
    """

    @property
    def version(self) -> int: ...
    def check_running(self) -> None: ...
    def on_conflict(self) -> None: ...
    def start_task(self, coro: Coroutine[Any, Any, T], /) -> asyncio.Task[T]: ...


class WaitingWrite:
    """A write that waits for an earlier one. Until it begins, a later `write()` may join it."""

    __slots__ = ("asked", "data", "task")

    asked: WriteRequest
    data: bytes
    task: asyncio.Task[None]


class State(Generic[S]):
    """One persistent state of one activation, as `state(...)` gives it to a grain.

    The state is loaded before `on_activate`. Change `value`, then call `write()` to store it; a
    state with `write="turn"` is also stored after each turn that ended well and changed the value.
    Every write is a compare-and-set on the etag, with a fence, so no update is lost. A conflict
    ends the activation, and the next one reads the stored row.

    Attributes:
        value: The value. Assign to it, or change it in place.
        parcels: Bytes that parts of the silo store with the value, and send once they are stored.
        cursors: Positions of streams, stored in the same row.
        writer: The handler with `commit_with` that runs; empty if none does. `commit` stores the
            value when the handler ends, and other writes are refused until then.
    """

    def __init__(
        self,
        field: StateField[S],
        owner: StateOwner,
        store: StateStore,
        key: str,
        runtime: object,
        upgrades: StateUpgrades = NO_UPGRADES,
    ) -> None:
        self._field = field
        self._owner = owner
        self._store = store
        self._key = key
        self._runtime = runtime
        self._etag: Etag | None = None
        self._upgrades = upgrades
        self._stored: bytes = NIL
        self._stored_by = upgrades.version  # the version that has stored it
        self._seen: bytes = NIL  # the encoded value when it last equalled the store
        self._lock = asyncio.Lock()
        self._joinable: WaitingWrite | None = None  # the last requested write, until it begins
        self.cursors: dict[str, dict[str, Cursor]] = {}
        self._over: dict[str, None] = {}  # ended subscriptions
        self.writer = ""
        self.parcels = Parcels()
        self.value: S = field.default()

    @property
    def etag(self) -> str | None:
        """The etag of the row that was last read or written; None if there is no row."""
        return self._etag

    @property
    def key(self) -> str:
        """The key of the row, which is unique in its store."""
        return self._key

    @property
    def exists(self) -> bool:
        """Whether a value is stored."""
        return self._stored != NIL

    async def read(self) -> None:
        """Load the stored value, or the default if none is stored.

        Raises:
            StateTooNew: A later version of the grain type has stored the value.
            StorageError: The row cannot be read as this state, or an upgrade failed.
            StorageUnavailable: The store did not answer.
        """
        row = await self._store.read(self._key)
        try:
            data, etag = (None, None) if row is None else (row.data, row.etag)
            self.rehydrate(MovedState(data, etag, None, self._upgrades.version))
        except (TypeError, ValueError, OverflowError) as error:
            raise StorageError(
                f"state `{self._field.attribute}`: row {show_text(repr(self._key))} of store "
                f"{self._field.store!r} cannot be read as `{show_hint(self._field.codec.hint)}`: "
                f"{error}; change the class so that it fits the row, or repair the row"
            ) from None

    def dehydrate(self) -> MovedState:
        """Return the state for another silo: the row, its etag, and the value if it differs.

        Raises:
            TypeError: The value cannot be encoded.
            ValueError: A write is under way, so the row is not known.
        """
        if self._lock.locked() or not self.parcels.is_calm:
            raise ValueError(f"{show_text(self._key)}: a write is under way")
        data, row = self._encode(), None
        if self._etag is not None:
            parcels = self.parcels.row(self.parcels.stored)
            row = make_row(self._stored, self.cursors, parcels, self._stored_by)
        value = None if data == self._seen else data
        return MovedState(row, self._etag, value, self._upgrades.version)

    def rehydrate(self, moved: MovedState) -> None:
        """Continue with a state of another silo, without the store.

        Raises:
            StateTooNew: A later version of the grain type has stored the value.
            StorageError: An upgrade failed.
            TypeError: The row or the value is not of this type.
            ValueError: As TypeError.
        """
        stored = StoredState(msgspec.Raw(NIL)) if moved.row is None else _decode_row(moved.row)
        data = bytes(stored.data)
        self._upgrades.check(self._key, FIRST_VERSION if data == NIL else stored.version)
        self._upgrades.check(self._key, moved.version)
        self._etag = moved.etag
        self._stored, self._stored_by, self.cursors = data, stored.version, stored.positions()
        self.parcels.load(ParcelRow(stored.origin, stored.first, stored.parcels))
        self.restore()
        if moved.value is not None:
            self.value = self._upgrades.upgrade(
                self._key, moved.value, moved.version, self._field.codec, self._runtime
            )

    def restore(self) -> None:
        """Decode the value again from the row that was last read or written."""
        self.parcels.restore()
        if self._stored == NIL:
            self.value = self._field.default()
            self._seen = self._field.codec.encode(self.value)
        else:
            codec, by = self._field.codec, self._stored_by
            self.value = self._upgrades.upgrade(self._key, self._stored, by, codec, self._runtime)
            self._seen = self._stored
            if not self._upgrades.is_present(by):
                self._seen = codec.encode(self.value)

    async def write(self) -> None:
        """Store the value as it is now.

        Changes that follow the call are not part of the write. If the caller is cancelled, the
        write still happens.

        Raises:
            TypeError: The value cannot be encoded.
            Conflict: The stored row is not the one that was read. The activation ends.
            StorageUnavailable: The store did not answer.
            NotInCluster: The silo has ended.
            ConfigError: A handler with `commit_with` runs, which writes this state when it ends.
        """
        self._check_writer()
        await self._write_data(self._encode())

    async def clear(self) -> None:
        """Set the default, and store that there is no value.

        The positions of streams stay. Raises like `write`.
        """
        self._check_writer()
        self.value = self._field.default()
        seen = self._field.codec.encode(self.value)
        asked = self.parcels.ask()
        write = self._begin(lambda: self._store_row(NIL, seen, {}, asked.upto), asked)
        await asyncio.shield(write)

    def cursor(self, subscription: str, queue: str) -> Cursor | None:
        """Return the stored position of a subscription in a queue.

        Args:
            subscription: The name of the subscription.
            queue: The name of the queue.

        Returns:
            The position, or None if none is stored.
        """
        found = self.cursors.get(subscription)
        return None if found is None else found.get(queue, found.get(OLD_FORM))

    def forget_position(self, subscription: str) -> None:
        """Leave out the position of an ended subscription in the next write.

        Args:
            subscription: The name of the subscription.
        """
        self.cursors.pop(subscription, None)
        self._over[subscription] = None
        if len(self._over) > OVER_MAX:
            del self._over[next(iter(self._over))]

    def keep_position(self, subscription: str) -> None:
        """Keep the positions of a subscription that was made again.

        Args:
            subscription: The name of the subscription.
        """
        self._over.pop(subscription, None)

    async def commit(self, subscription: str, queue: str, cursor: Cursor | None) -> None:
        """Store the value and the position of a subscription in a queue, in one write.

        A caller that is cancelled meanwhile is cancelled after the write. Otherwise the turn would
        end, and `restore` would return to an older value than the one that is being stored. Raises
        like `write`.

        Args:
            subscription: The name of the subscription.
            queue: The name of the queue.
            cursor: The position. None: unchanged.
        """
        data = self._encode()
        new = {} if cursor is None else {subscription: {queue: cursor}}
        asked = self.parcels.ask()
        write = self._begin(lambda: self._store_row(data, data, new, asked.upto), asked)
        cancelled: asyncio.CancelledError | None = None
        while not write.done():
            ended: asyncio.Future[None] = write.get_loop().create_future()
            write.add_done_callback(partial(wake, ended))  # `asyncio.wait` costs 3 times more
            try:
                await ended
            except asyncio.CancelledError as error:
                cancelled = error
        write.result()
        if cancelled is not None:
            raise cancelled

    async def write_if_changed(self) -> None:
        """Store the value if it differs from the stored one. Raises like `write`."""
        self._check_writer()
        data = self._encode()
        if data != self._seen:
            await self._write_data(data)

    def _check_writer(self) -> None:
        """Refuse a write that would store changes of an event without its position.

        If the handler then fails, the event is delivered again, and counts twice.
        """
        if self.writer:
            name = self._field.attribute
            raise ConfigError(
                f"state `{name}`: {self.writer} has commit_with={name}, so the state is written "
                "with the position of the event when the handler ends: remove the write, or else "
                "the event could count twice"
            )

    async def trim(self) -> None:
        """Store the row without the parcels that are sent. The stored value stays. Raises like
        `write`.
        """
        if not self.parcels.is_trimmed:
            write = lambda: self._store_row(  # noqa: E731
                self._stored, self._seen, {}, self.parcels.stored, self._stored_by
            )
            await asyncio.shield(self._begin(write))

    def start_task(self, coro: Coroutine[Any, Any, T], /) -> asyncio.Task[T]:
        """Start a task that ends with the activation.

        Args:
            coro: The coroutine to run.

        Raises:
            NotInCluster: The activation has ended.
        """
        return self._owner.start_task(coro)

    def _encode(self) -> bytes:
        """Encode the value, and decode it once, so that every stored row can be read again."""
        try:
            data = self._field.codec.encode(self.value)
            if data != self._seen:
                self._field.codec.decode(data, self._runtime)
            return data
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"{show_text(self._key)}: {error}") from None

    async def _write_data(self, data: bytes) -> None:
        """Store an encoded value, alone or in place of an older one that still waits."""
        waiting = self._joinable
        if waiting is None:
            waiting = WaitingWrite()
            waiting.data = data
            waiting.asked = self.parcels.ask()
            waiting.task = self._begin(lambda: self._write_waiting(waiting), waiting.asked)
            self._joinable = waiting
        else:
            waiting.data = data
            self.parcels.join(waiting.asked)
        await asyncio.shield(waiting.task)

    async def _write_waiting(self, waiting: WaitingWrite) -> None:
        if self._joinable is waiting:
            self._joinable = None  # later changes need a later write
        await self._store_row(waiting.data, waiting.data, {}, waiting.asked.upto)

    def _begin(
        self, write: Callable[[], Coroutine[Any, Any, None]], asked: WriteRequest | None = None
    ) -> asyncio.Task[None]:
        """Run one write to its end after the earlier ones, even if its caller is cancelled."""
        self._joinable = None  # a value that is encoded later must not be stored earlier
        task = asyncio.ensure_future(self._run(write, asked))
        task.add_done_callback(partial(note_failed, self._key))
        return task

    async def _run(
        self, write: Callable[[], Coroutine[Any, Any, None]], asked: WriteRequest | None
    ) -> None:
        async with self._lock:
            try:
                await write()
            except Conflict:
                self._owner.on_conflict()
                raise
            finally:  # before the caller continues: `restore` then keeps nothing for this write
                if asked is not None:
                    self.parcels.on_ended(asked)

    async def _store_row(
        self,
        data: bytes,
        seen: bytes,
        new: Mapping[str, Mapping[str, Cursor]],
        parcels_upto: int,
        version: int = 0,
    ) -> None:
        """Write the row: an encoded value, new positions of streams over the known ones, and
        parcels.

        `version` is the one that has encoded the value; 0 stands for that of the class.
        """
        version = version or self._upgrades.version
        self._owner.check_running()
        cursors = merge_positions(self.cursors, new)
        for ended in self._over:
            cursors.pop(ended, None)
        parcels = self.parcels.row(parcels_upto)
        row = make_row(data, cursors, parcels, version)
        self._etag = await self._store.write(self._key, row, self._etag, self._owner.version)
        self._stored, self._seen, self.cursors = data, seen, cursors
        self._stored_by = version
        self.parcels.wrote(parcels)


def note_failed(key: str, write: asyncio.Task[None]) -> None:
    """Retrieve the error of a write whose caller may be gone. A conflict ends the activation."""
    error = None if write.cancelled() else write.exception()
    if error is not None:
        text = show_text(str(error), ERROR_CHARS_MAX)
        log.info("state %s was not written: %s: %s", show_text(key), type(error).__name__, text)


def make_row(
    data: bytes, cursors: Mapping[str, Mapping[str, Cursor]], parcels: ParcelRow, version: int
) -> bytes:
    """Return the encoded row of a state. That of version 1 is as it was before versions."""
    fields = (msgspec.Raw(data), cursors, *parcels)
    if version > FIRST_VERSION:
        return _encode_row((*fields, version))
    return _encode_row(fields if parcels.origin else fields[:2])


def wake(waiter: asyncio.Future[None], _: object) -> None:
    """End a wait, unless it was cancelled."""
    if not waiter.done():
        waiter.set_result(None)


def merge_positions(
    known: Mapping[str, Mapping[str, Cursor]], new: Mapping[str, Mapping[str, Cursor]]
) -> dict[str, dict[str, Cursor]]:
    """Return all positions. A new one replaces the subscription's position in the old form."""
    found = {subscription: dict(queues) for subscription, queues in known.items()}
    for subscription, queues in new.items():
        own = found.setdefault(subscription, {})
        own.pop(OLD_FORM, None)
        own.update(queues)
    return found


class StateField(Generic[S]):
    """The class attribute that `state(...)` makes. On a grain object it gives the `State`.

    Attributes:
        name: The last part of the stored key.
        store: The name of the store.
        default: Makes the first value.
        writes_each_turn: Whether the state is written after each turn that changed it.
        attribute: The name of the class attribute.
        source: `file:line` of the definition.
    """

    __millstream_state__ = True

    def __init__(
        self,
        hint: Any,
        default: Callable[[], S],
        name: str | None,
        store: str,
        write: Literal["asked", "turn"],
        source: str = "",
    ) -> None:
        self._hint = hint
        self.default = default
        self.name = name or ""
        self.store = store
        self.writes_each_turn = write == "turn"
        self._codec: Codec[Any] | None = None
        self._owner: type[Any] | None = None
        self.attribute = ""
        self.source = source

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._owner, self.attribute = owner, name
        self.name = self.name or name

    @overload
    def __get__(self, obj: None, owner: type[Any], /) -> Self: ...
    @overload
    def __get__(self, obj: object, owner: type[Any], /) -> State[S]: ...
    def __get__(self, obj: Any, owner: type[Any], /) -> Any:
        return self if obj is None else obj._millstream_states[self.attribute]

    def __set__(self, obj: object, value: NoReturn, /) -> None:
        raise AttributeError(f"assign to `self.{self.attribute}.value`, not to the state itself")

    @property
    def codec(self) -> Codec[Any]:
        """The codec of the value."""
        if self._codec is None:
            self.resolve(self.attribute)
        assert self._codec is not None
        return self._codec

    def resolve(self, subject: str) -> None:
        """Build the codec.

        Args:
            subject: The beginning of error texts.

        Raises:
            DefinitionError: The value or its default cannot be encoded.
        """
        if self._codec is None:
            codec = build_codec(self._annotation(subject), f"{subject}: state")
            try:
                codec.decode(codec.encode(self.default()))
            except (TypeError, ValueError, OverflowError) as error:
                if not codec.needs_runtime:
                    raise DefinitionError(f"{subject}: the default of the state: {error}") from None
            self._codec = codec

    def _annotation(self, subject: str) -> Any:
        if self._hint is not None:
            return self._hint
        assert self._owner is not None
        hint = get_type_hints(self._owner).get(self.attribute)
        arguments: tuple[Any, ...] = getattr(hint, "__args__", ())
        if len(arguments) != 1:
            raise DefinitionError(
                f"{subject}: write `{self.attribute}: State[...] = state(...)`, "
                "or pass the class to state()"
            )
        return arguments[0]


@overload
def state(
    kind: Callable[[], S],
    /,
    *,
    name: str | None = None,
    store: str = "default",
    write: Literal["asked", "turn"] = "asked",
) -> StateField[S]: ...
@overload
def state(
    kind: type[S],
    /,
    *,
    default: Callable[[], S],
    name: str | None = None,
    store: str = "default",
    write: Literal["asked", "turn"] = "asked",
) -> StateField[S]: ...
@overload
def state(
    *,
    default: Callable[[], S],
    name: str | None = None,
    store: str = "default",
    write: Literal["asked", "turn"] = "asked",
) -> State[S]: ...
def state(
    kind: Any = None,
    /,
    *,
    default: Any = None,
    name: str | None = None,
    store: str = "default",
    write: Literal["asked", "turn"] = "asked",
) -> Any:
    """Define a persistent state of a grain, as a class attribute.

    ```python
    class Airport(Grain):
        tally = state(Tally)
        names: State[list[str]] = state(default=list)

        async def land(self) -> None:
            self.tally.value.landed += 1
            await self.tally.write()
    ```

    Args:
        kind: The type of the value. Without `default` it is called for the first value.
        default: Makes the first value.
        name: The last part of the stored key. None: the attribute's name.
        store: The name of the silo's store that keeps the row.
        write: `"asked"` writes only by `write()`. `"turn"` also writes after each turn that ended
            well and changed the value.

    Returns:
        A `StateField`. On a grain object the attribute is a `State`.

    Raises:
        DefinitionError: An argument is invalid, or, when the class is defined or hosted, the value
            cannot be encoded.
    """
    frame = sys._getframe(1)
    source = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    first = kind if default is None else default
    if not callable(first):
        raise DefinitionError(
            f"{source}: state({show_text(repr(first))}): pass a class, or `default=` and an "
            "annotation"
        )
    if name is not None:
        check_name(f"{source}: the name of a state", name)
    check_name(f"{source}: the store of a state", store)
    if write not in ("asked", "turn"):
        raise DefinitionError(f'{source}: state(write={write!r}): pass "asked" or "turn"')
    return StateField(kind, first, name, store, write, source)


def upgrade(state: StateField[S] | State[S], /, *, from_version: int) -> Callable[[UF], UF]:
    """Mark a function that takes the value of a state as an earlier version of the class stored it.

    The function returns the value as the next version has it. Several steps form a chain, whose
    last result is the present type. The function gets the values of `from_version`, and of the
    versions after the step before it. So a version without changes of the state needs no step.

    ```python
    @grain(version=2)
    class Airport(Grain):
        tally = state(Tally)

        @staticmethod
        @upgrade(tally, from_version=1)
        def tally_of_1(old: OldTally) -> Tally:
            return Tally(landed=old.count)
    ```

    The function runs before the activation, when the row is read. The row keeps its form until the
    next write, so the earlier version can read the row until then. If the function fails, the
    caller gets StorageError, and the row is unchanged.

    Args:
        state: The state, as the body of the class names it.
        from_version: The version of the class that stored such values, from 1 to 65,534.

    Raises:
        DefinitionError: An argument is wrong. Or, when the class is defined or hosted, the function
            is no static method of one annotated value, `from_version` is there twice or is not
            below the version of the class, or the types of the steps do not fit each other.
    """
    frame = sys._getframe(1)
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}: @upgrade"
    if not isinstance(state, StateField):
        raise DefinitionError(
            f"{where}({show_text(repr(state))}): pass a state of the class, such as "
            "`@upgrade(tally, from_version=1)`"
        )
    check_from_version(where, from_version)

    def mark(fn: UF) -> UF:
        add_mark(fn, UpgradeMark(state, from_version))
        return fn

    return mark
