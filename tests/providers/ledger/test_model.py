"""The protocol's cores, with their messages in every order within bounds. See `model`."""

from __future__ import annotations

import pytest
from tests.providers.ledger.model.explorer import explore
from tests.providers.ledger.model.shapes import QUICK, SLOW
from tests.providers.ledger.model.world import Shape


def name_of(shape: Shape) -> str:
    return f"{shape.quorum_text}: {shape.bounds_text}"


@pytest.mark.one_in(12)
@pytest.mark.parametrize("shape", QUICK, ids=name_of)
def test_whatever_order_messages_come_in_nothing_confirmed_is_lost(shape: Shape) -> None:
    found = explore(shape)
    assert found.is_whole and found.states > 1_000
    if shape.bounds.recoveries:
        assert set(found.ends) == set(range(-1, shape.bounds.entries)), "it may end anywhere"


@pytest.mark.slow
@pytest.mark.parametrize("shape", SLOW, ids=name_of)
def test_nor_with_more_trouble(shape: Shape) -> None:
    assert explore(shape).is_whole
