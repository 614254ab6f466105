"""Frames are cut wherever the reads end, and joined once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.runtime.wire.framing import HEADER_BYTES, FrameReader, frame


@given(st.lists(st.binary(max_size=20), max_size=6), st.lists(st.integers(1, 9), min_size=1))
def test_frames_come_out_whole_however_they_are_cut(payloads: list[bytes], cuts: list[int]) -> None:
    stream, reader, found = b"".join(map(frame, payloads)), FrameReader(100), []
    while stream:
        size = cuts[len(stream) % len(cuts)]
        found += reader.feed(stream[:size])
        stream = stream[size:]
    assert found == payloads


def test_the_parts_of_a_large_frame_are_joined_when_it_is_whole() -> None:
    reader, large = FrameReader(10_000), frame(bytes(4_000))
    assert reader.need == HEADER_BYTES and reader.held_bytes == 0
    assert reader.feed(frame(b"small") + large[:1_000]) == [b"small"]
    assert reader.feed(large[1_000:2_000]) == [] and reader.feed(large[2_000:3_000]) == []
    assert reader.need == HEADER_BYTES + 4_000 and reader.held_bytes == 3_000
    assert reader.feed(large[3_000:]) == [bytes(4_000)]
    assert reader.need == HEADER_BYTES and reader.held_bytes == 0
