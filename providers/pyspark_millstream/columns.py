"""Messages to Arrow batches, with a row for each item, as pure functions.

Without a user's schema the columns are `key`, `payload` (the item as MessagePack), `headers`,
`token` and `time`. With a schema, a column is the field of that name in the item, which must be a
map. A column with one of the five names and an underscore before it has that value of the message.
A missing field is null. The sink writes dates, decimals and times without a zone as text, and they
are read as such again, at every depth (`values`).

An item is malformed if it is no map, or if a field does not fit its column. The user selects the
treatment, as in Spark's JSON source. `failfast` ends the query. `permissive` makes unfitting values
null and describes them in a column. `dropmalformed` leaves the row out.

Rows are in the order of the messages and of their items. An error names the column, the stream's
key and the token. Nothing is truncated, and a column of the message always fits.
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
"""The columns without a user's schema."""
PLAIN_SCHEMA = (
    "key string, payload binary, headers map<string,string>, token string, time timestamp"
)
"""The same columns with their types."""
MODES = ("failfast", "permissive", "dropmalformed")
"""The treatments of malformed items; the names are those of Spark's JSON source."""
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
        schema: The schema of the batches.
        is_plain: The columns are `PLAIN`, not the user's.
        mode: The treatment of malformed items: one of `MODES`.
        corrupt: With `permissive`, the column for malformed items, if the schema has it. A binary
            column gets the item as MessagePack, a string column the reason.

    `dropped` is the number of items that were left out.
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
        """Return a row for each item. Raises ValueError for a malformed item with `failfast`."""
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
        """Return the columns of items; note the malformed rows and the reasons."""
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
        """Return the column that describes malformed items."""
        from pyarrow import array
        from pyarrow.types import is_binary

        kind = self._schema.field(self._corrupt).type
        told: list[bytes | str | None] = [None] * len(places)
        for row, reason in malformed.items():
            message, index = places[row]
            told[row] = bytes(message.items[index]) if is_binary(kind) else reason
        return array(told, kind)


def _item_of(place: ItemPlace, row: int, malformed: dict[int, str] | None) -> Mapping[str, Any]:
    """Return the fields of an item; none if it is malformed. Raises ValueError if not noted."""
    try:
        item = _decode(place.message.items[place.item])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = f"{place} cannot be decoded: {error}"
    else:
        if isinstance(item, dict):
            return item
        reason = (
            f"{place} is {type(item).__name__}, not a map: read without a schema; the columns are "
            "then key, payload, headers, token, time"
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
    """Return a column. Values that do not fit are noted, and become null.

    Raises ValueError with the first value that does not fit, if that is not noted.
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
    """Split messages into parts of about `rows_max` rows, in order; a message is never split."""
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
