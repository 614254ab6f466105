"""Calls of versions above 1 on the wire: a message of their own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millstream.runtime.wire.framing import FrameError
from millstream.runtime.wire.message import (
    Call,
    Unreadable,
    VersionedCall,
    decode_each,
    decode_messages,
    encode_messages,
)

FIELDS: Any = (7, "Port", "BOS", "land", msgspec.Raw(b"\x90"), 5.0, "", [], 0, None)
ORDINARY = (
    b"\x9e\x01\x07\xa4Port\xa3BOS\xa4land\x90\xcb@\x14\x00\x00\x00\x00\x00\x00\xa0\x90\x00\xc0\x01"
)


def test_an_ordinary_call_has_no_field_for_the_version() -> None:
    call = Call(*FIELDS)
    assert call.version == 1
    data = encode_messages([call])
    assert data[1:].startswith(ORDINARY) and len(data) == 1 + len(ORDINARY) + 2


def test_a_call_of_a_later_version_carries_the_version() -> None:
    call = VersionedCall(*FIELDS)
    call.version = 3
    (found,) = decode_messages(encode_messages([call]))
    assert isinstance(found, VersionedCall) and isinstance(found, Call)
    assert (found.version, found.kind, found.method) == (3, "Port", "land")
    sent = msgspec.structs.replace(found, ttl_s=1.0)
    assert type(sent) is VersionedCall and sent.version == 3


@pytest.mark.parametrize("made", [Call, VersionedCall])
def test_a_call_that_cannot_be_read_fails_alone(made: type[Call]) -> None:
    call = made(*FIELDS)
    call.kind = 5  # type: ignore[assignment]
    wrong, right = decode_each(encode_messages([call, Call(*FIELDS)]))
    assert isinstance(wrong, Unreadable) and wrong.id == 7
    assert type(right) is Call


def test_a_message_of_another_length_is_no_call() -> None:
    with pytest.raises((msgspec.DecodeError, FrameError)):
        decode_each(msgspec.msgpack.encode([[10, 7, 5]]))
    with pytest.raises(FrameError, match="tag 10"):
        decode_each(msgspec.msgpack.encode([[10, 7, *range(12)]]))
