"""Messages to Arrow batches: a row for each item. Pure.

Without a schema of the user's the rows are `key`, `payload` (the item as MessagePack), `headers`,
`token`, `time`. With one, a column is the field of that name in the item, which must be a map; a
column with one of those names and an underscore before it is that of the message. A field that an
item lacks is null; what the sink wrote as text (dates, decimals, times without a zone) is read as
such again, at every depth (`values`).
An item is malformed if it is no map, or a field does not fit its column. What becomes of it is the
user's choice, as in Spark's JSON source: `failfast` ends the query, `permissive` makes null what
does not fit and tells in a column what it was, `dropmalformed` leaves the row out.
Invariants: rows stand in the order of the messages and of the items in them; an error names the
column, the stream's key and the token; nothing is cut, and a column of the message always fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from millstream.streams.rewinding.target import ReadMessage

from .values import array_of

if TYPE_CHECKING:
    from pyarrow import Array, DataType, RecordBatch, Schema

__all__ = ["MODES", "PLAIN", "PLAIN_SCHEMA", "Columns", "cut"]

PLAIN = ["key", "payload", "headers", "token", "time"]
"""The columns without a schema of the user's."""
PLAIN_SCHEMA = (
    "key string, payload binary, headers map<string,string>, token string, time timestamp"
)
"""The same with their types."""
MODES = ("failfast", "permissive", "dropmalformed")
"""The ways to treat malformed items; the names are those of Spark's JSON source."""
SHOWN_CHARS = 60

_decode = msgspec.msgpack.Decoder().decode
OfMessage = Callable[[ReadMessage, int], Any]


def _token(message: ReadMessage, index: int) -> str:
    return str(message.token._replace(index=index))


def _time(message: ReadMessage, index: int) -> datetime:
    return datetime.fromtimestamp(message.enqueued_s, UTC)


OF_MESSAGE: Mapping[str, OfMessage] = {
    "key": lambda message, index: message.key,
    "payload": lambda message, index: bytes(message.items[index]),
    "headers": lambda message, index: list((message.headers or {}).items()),
    "token": _token,
    "time": _time,
}


class ItemPlace(NamedTuple):
    """An item of a message, by its number."""

    message: ReadMessage
    item: int

    def __str__(self) -> str:
        return f"the item of stream {self.message.key!r} at {_token(self.message, self.item)}"


class Columns:
    """Makes batches of one schema.

    Args:
        schema: of the batches.
        is_plain: it has the columns `PLAIN`, not the user's own.
        mode: what becomes of malformed items: one of `MODES`.
        corrupt: the column that tells with `permissive` what was malformed, if it is in the schema:
            a binary column has the item as MessagePack, a string column the reason.

    Attributes: `dropped`: items that were left out.
    """

    def __init__(
        self, schema: Schema, *, is_plain: bool, mode: str = "failfast", corrupt: str = ""
    ) -> None:
        assert mode in MODES, mode
        self._schema = schema
        self._mode = mode
        self._corrupt = corrupt if not is_plain and corrupt in schema.names else ""
        self._of_message: dict[str, OfMessage] = {}
        self._of_item: list[str] = []
        self.dropped = 0
        for name in schema.names:
            own = name if is_plain else name.removeprefix("_")
            if own in OF_MESSAGE and (is_plain or name.startswith("_")):
                self._of_message[name] = OF_MESSAGE[own]
            elif name != self._corrupt:
                self._of_item.append(name)

    def batch(self, messages: Sequence[ReadMessage]) -> RecordBatch:
        """A row for each item. Raises ValueError: an item that does not fit, with `failfast`."""
        from pyarrow import RecordBatch, array

        places = [ItemPlace(one, index) for one in messages for index in range(len(one.items))]
        malformed: dict[int, str] = {}
        arrays = self._of_items(places, malformed)
        for name, value in self._of_message.items():
            kind = self._schema.field(name).type
            arrays[name] = _array([value(*place) for place in places], name, kind, places, None)
        if self._corrupt:
            arrays[self._corrupt] = self._tell(places, malformed)
        made = RecordBatch.from_arrays(
            [arrays[name] for name in self._schema.names], schema=self._schema
        )
        if self._mode != "dropmalformed" or not malformed:
            return made
        self.dropped += len(malformed)
        return made.filter(array([row not in malformed for row in range(len(places))]))

    def _of_items(self, places: Sequence[ItemPlace], malformed: dict[int, str]) -> dict[str, Array]:
        """The columns of items; notes which rows are malformed, and why."""
        if not self._of_item:
            return {}
        bad = None if self._mode == "failfast" else malformed
        items = [_item_of(place, row, bad) for row, place in enumerate(places)]
        return {
            name: _array(
                [item.get(name) for item in items],
                name,
                self._schema.field(name).type,
                places,
                bad,
            )
            for name in self._of_item
        }

    def _tell(self, places: Sequence[ItemPlace], malformed: Mapping[int, str]) -> Array:
        """The column that tells what was malformed."""
        from pyarrow import array
        from pyarrow.types import is_binary

        kind = self._schema.field(self._corrupt).type
        told: list[bytes | str | None] = [None] * len(places)
        for row, reason in malformed.items():
            message, index = places[row]
            told[row] = bytes(message.items[index]) if is_binary(kind) else reason
        return array(told, kind)


def _item_of(place: ItemPlace, row: int, malformed: dict[int, str] | None) -> Mapping[str, Any]:
    """The fields of an item; none if it is malformed. Raises ValueError if nobody notes that."""
    try:
        item = _decode(place.message.items[place.item])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = f"{place} cannot be decoded: {error}"
    else:
        if isinstance(item, dict):
            return item
        reason = (
            f"{place} is {type(item).__name__}, and not a map: read without a schema, as key, "
            "payload, headers, token, time"
        )
    if malformed is None:
        raise ValueError(reason)
    malformed.setdefault(row, reason)
    return {}


def _array(
    values: list[Any],
    name: str,
    kind: DataType,
    places: Sequence[ItemPlace],
    malformed: dict[int, str] | None,
) -> Array:
    """A column; values that do not fit are noted, and null.

    Raises ValueError naming the first value that does not fit, if nobody notes it.
    """
    import pyarrow as arrow

    misfits = (arrow.ArrowException, TypeError, ValueError, OverflowError)
    try:
        return array_of(values, kind)
    except misfits:
        fitting = list(values)
    for row, value in enumerate(values):
        try:
            array_of([value], kind)
        except misfits as error:
            text = repr(value)[:SHOWN_CHARS]
            reason = f"column {name!r} is {kind}, and {places[row]} has {text}: {str(error)[:200]}"
            if malformed is None:
                raise ValueError(reason) from None
            malformed.setdefault(row, reason)
            fitting[row] = None
    return array_of(fitting, kind)


def cut(messages: Sequence[ReadMessage], rows_max: int) -> Iterator[Sequence[ReadMessage]]:
    """Messages in parts of about so many rows, in order; a message is not cut."""
    part: list[ReadMessage] = []
    rows = 0
    for message in messages:
        part.append(message)
        rows += len(message.items)
        if rows >= rows_max:
            yield part
            part, rows = [], 0
    if part:
        yield part
