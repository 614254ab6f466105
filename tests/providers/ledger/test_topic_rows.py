"""The row of a topic and the rows of its ledgers: contradictions are refused and named."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.contract.in_virtual_time import in_virtual_time
from tests.providers.ledger.clocks import LoopClock

from millstream.providers.ledger import Quorum
from millstream.providers.ledger.inspection import LedgerRecord, LedgerState, TopicRecord
from millstream.providers.ledger.metadata.metadata import Metadata
from millstream.providers.ledger.protocol.record import Fragment
from millstream.providers.ledger.topic.record import (
    LedgerSpan,
    make_listed_and_gone,
    refuse_other,
    topic_rows,
)
from millstream.runtime import Corrupt, MemoryStateStore

SPAN = LedgerSpan(7, 40, is_sealed=True, count=10, last=5, size_bytes=900)
RECORD = LedgerRecord(
    ledger=7,
    state=LedgerState.CLOSED,
    quorum=Quorum(3, 3, 2),
    term=1,
    fragments=(Fragment(0, ("a", "b", "c")),),
    topic="t",
    last=5,
    length=900,
    first=40,
)


def test_a_ledger_that_says_what_its_topic_says_is_accepted() -> None:
    refuse_other("t", SPAN, RECORD)
    open_ = msgspec.structs.replace(RECORD, state=LedgerState.OPEN, last=-1, length=0)
    refuse_other("t", LedgerSpan(7, 40), open_)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"topic": "other"},
            "its row (topics/) lists ledger 7 from message 40 on, but the row of that ledger "
            "(ledgers/) has topic other, from message 40 on; one of the two is damaged",
        ),
        (
            {"first": 41},
            "its row (topics/) lists ledger 7 from message 40 on, but the row of that ledger "
            "(ledgers/) has topic t, from message 41 on; one of the two is damaged",
        ),
        (
            {"state": LedgerState.RECOVERING},
            "its row (topics/) lists ledger 7 with its end at entry 5, but the row of that ledger "
            "(ledgers/) has no end: it is recovering; one of the two is damaged",
        ),
        (
            {"last": 6},
            "its row (topics/) lists ledger 7 with 900 bytes up to entry 5, but the row of that "
            "ledger (ledgers/) has 900 bytes up to entry 6; one of the two is damaged",
        ),
        (
            {"length": 901},
            "its row (topics/) lists ledger 7 with 900 bytes up to entry 5, but the row of that "
            "ledger (ledgers/) has 901 bytes up to entry 5; one of the two is damaged",
        ),
    ],
)
def test_a_ledger_that_says_something_else_is_refused_with_both(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(Corrupt) as caught:
        refuse_other("t", SPAN, msgspec.structs.replace(RECORD, **changes))
    assert str(caught.value).startswith(f"topic t: {said}")


def test_a_ledger_that_is_listed_and_gone_is_named() -> None:
    text = (
        "topic t: its row (topics/) lists ledger 7, but the row of that ledger (ledgers/) is gone"
    )
    assert str(make_listed_and_gone("t", 7)).startswith(text)


def test_a_row_of_a_topic_that_is_lost_is_noticed() -> None:
    async def main() -> None:
        store = MemoryStateStore()
        rows = topic_rows(Metadata(store, "c", LoopClock()))
        await rows.create("t", TopicRecord("t"))
        row = store.get("ledger/c/topics/t")
        assert row is not None
        store.remove("ledger/c/topics/t", row.etag, 0)
        with pytest.raises(Corrupt, match="row ledger/c/topics/t is missing"):
            await rows.read("t")

    in_virtual_time(main)
