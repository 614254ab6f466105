"""The arithmetic of quorums, compared with brute force."""

from __future__ import annotations

from itertools import combinations

import pytest

from millstream.providers.ledger import Quorum
from millstream.providers.ledger.protocol.quorum import check_quorum
from millstream.runtime import ConfigError

QUORUMS = [Quorum(e, w, a) for e in range(1, 6) for w in range(1, e + 1) for a in range(1, w + 1)]


@pytest.mark.parametrize("quorum", QUORUMS)
def test_a_write_set_has_as_many_places_as_copies_and_goes_round(quorum: Quorum) -> None:
    sets = [quorum.write_set(entry) for entry in range(2 * quorum.ensemble)]
    assert all(len(set(places)) == quorum.write for places in sets)
    assert sets[: quorum.ensemble] == sets[quorum.ensemble :]
    distinct = {frozenset(places) for places in sets}
    assert len(distinct) == (1 if quorum.ensemble == quorum.write else quorum.ensemble)
    assert quorum.write_set(2**62 + 1)[0] == (2**62 + 1) % quorum.ensemble


@pytest.mark.parametrize("quorum", QUORUMS)
def test_covered_is_that_no_entry_can_gather_an_ack_quorum_elsewhere(quorum: Quorum) -> None:
    places = range(quorum.ensemble)
    for count in range(quorum.ensemble + 1):
        for answered in combinations(places, count):
            silent = set(places) - set(answered)
            can_gather = any(
                len(silent & set(quorum.write_set(entry))) >= quorum.ack for entry in places
            )
            assert quorum.is_covered(set(answered)) == (not can_gather)


@pytest.mark.parametrize(
    ("quorum", "denials"),
    [
        (Quorum(1, 1, 1), 1),
        (Quorum(2, 2, 2), 1),
        (Quorum(3, 3, 2), 2),
        (Quorum(3, 3, 3), 1),
        (Quorum(5, 5, 3), 3),
    ],
)
def test_so_many_answers_decide(quorum: Quorum, denials: int) -> None:
    assert quorum.denials == denials


@pytest.mark.parametrize("quorum", [(2, 3, 2), (3, 2, 3), (3, 3, 0), (0, 0, 0), (3, 3, 1)])
def test_quorums_that_cannot_work_are_refused_with_their_values(
    quorum: tuple[int, int, int],
) -> None:
    ensemble, write, ack = quorum
    text = f"ensemble={ensemble}, write_quorum={write}, ack_quorum={ack}"
    with pytest.raises(ConfigError, match=text):
        check_quorum(Quorum(*quorum))


def test_quorums_that_work_are_taken() -> None:
    for quorum in [(1, 1, 1), (2, 2, 2), (3, 3, 2), (5, 3, 2)]:
        check_quorum(Quorum(*quorum))


@pytest.mark.parametrize(
    ("bookies", "reduced"),
    [(9, (5, 3, 2)), (5, (5, 3, 2)), (4, (4, 3, 2)), (3, (3, 3, 2)), (2, (2, 2, 2))],
)
def test_with_fewer_bookies_the_ensemble_shrinks_first_and_then_the_copies(
    bookies: int, reduced: tuple[int, int, int]
) -> None:
    assert Quorum(5, 3, 2).reduce(bookies) == Quorum(*reduced)
