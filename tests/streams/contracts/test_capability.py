"""Valid combinations of capabilities, over all sets of them."""

from __future__ import annotations

from itertools import combinations

from millstream.streams import Capability
from millstream.streams.contracts.capability import contradiction, has_positions

C = Capability
EVERY_SET = [set(some) for size in range(len(C) + 1) for some in combinations(C, size)]


def test_a_token_is_a_position_where_tokens_rise_and_stay() -> None:
    for declared in EVERY_SET:
        assert has_positions(declared) is (C.ORDERED in declared and C.STABLE_TOKENS in declared)


def test_only_sets_that_cannot_work_are_refused_and_each_for_its_reason() -> None:
    for declared in EVERY_SET:
        has_log = has_positions(declared)
        text = contradiction(declared)
        faults = {
            "REWIND needs": C.REWIND in declared and not has_log,
            "LEASED needs": C.LEASED in declared and C.ITEM_ACK not in declared,
            "LEASED excludes": C.LEASED in declared and C.ORDERED in declared,
            "without OWN_POSITION": C.OWN_POSITION not in declared and not has_log,
        }
        first = next((words for words, is_so in faults.items() if is_so), "")
        assert text.startswith(first) and bool(text) is bool(first)
