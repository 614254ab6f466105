"""The walk over a segment: the frames that it finds, and the gaps between them."""

from __future__ import annotations

from tests.providers.ledger.bookie.segments import Content, Journal

from millstream.providers.ledger.bookie.form.frame import SECTOR_BYTES, front_bytes_of
from millstream.providers.ledger.bookie.form.segment import FRAMES_START
from millstream.providers.ledger.bookie.form.walk import bytes_at


def walked(*given: bytes) -> list[tuple[int, bool]]:
    """The sequence number of each frame that is found, and whether a frame before it is lost."""
    walk = Content(*given).walk()
    found = [(one.front.sequence, one.lost_before) for one in walk]
    assert not walk.has_unreadable
    return found


def test_all_frames_are_found_also_one_that_the_file_ends_with() -> None:
    given = Journal().frames(3)
    assert walked(*given) == [(1, False), (2, False), (3, False)]
    content = Content(*given)
    walk = content.walk()
    assert len(list(walk)) == 3 and walk.end == content.size_bytes


def test_a_gap_in_the_file_is_told_though_the_frames_follow_each_other() -> None:
    one, two, three = Journal().frames(3)
    assert walked(one, bytes(SECTOR_BYTES), two, three) == [(1, False), (2, True), (3, False)]


def test_a_gap_in_the_chain_is_told_though_the_frames_lie_side_by_side() -> None:
    one, _, three, four = Journal().frames(4)
    assert walked(one, three, four) == [(1, False), (3, True), (4, False)]


def test_a_copy_of_a_frame_is_not_found_again() -> None:
    one, two, three = Journal().frames(3)
    assert walked(one, two, two, one, three) == [(1, False), (2, False), (3, True)]


def test_a_frame_is_found_if_its_front_is_whole() -> None:
    """The bodies of a frame have their own checksums."""
    one, two = Journal().frames(2)
    front = front_bytes_of(two)
    assert walked(one, two[:front]) == [(1, False), (2, False)]
    assert walked(one, two[: front - 1]) == [(1, False)]


def test_what_cannot_be_read_is_zeros_sector_by_sector_and_told() -> None:
    content = Content(b"x" * (4 * SECTOR_BYTES), bad=[FRAMES_START + SECTOR_BYTES])
    file = content.file()
    assert bytes_at(file, FRAMES_START, SECTOR_BYTES) == (b"x" * SECTOR_BYTES, True)
    assert bytes_at(file, FRAMES_START + SECTOR_BYTES, 100) == (bytes(100), False)
    found, is_whole = bytes_at(file, FRAMES_START + 100, 3 * SECTOR_BYTES)
    assert found == b"x" * 412 + bytes(SECTOR_BYTES) + b"x" * 612 and is_whole is False
