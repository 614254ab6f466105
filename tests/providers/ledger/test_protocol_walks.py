"""Random walks through the protocol: a writer, recoveries and bookies with messages in any order.

In each walk, no confirmed entry is after the end, lost, or on fewer of the record's bookies than an
ack quorum. Nobody changes the end of a closed ledger. Once no message is lost, the ledger is always
closed.
"""

from __future__ import annotations

import pytest
from tests.providers.ledger.protocol_world import play

from millstream.providers.ledger import Quorum

SHAPES = [
    (Quorum(1, 1, 1), 1),
    (Quorum(1, 1, 1), 2),
    (Quorum(2, 2, 2), 3),
    (Quorum(3, 3, 2), 3),
    (Quorum(3, 3, 2), 5),
    (Quorum(3, 3, 3), 4),
    (Quorum(3, 2, 2), 4),
    (Quorum(5, 3, 2), 6),
]
WALKS = 150


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("quorum", "bookies"), SHAPES)
def test_nothing_confirmed_is_lost_whatever_order_messages_come_in(
    quorum: Quorum, bookies: int
) -> None:
    ends = [play(seed, quorum, bookies).record.last for seed in range(WALKS)]
    assert len(set(ends)) > 3, "walks end in different places"
