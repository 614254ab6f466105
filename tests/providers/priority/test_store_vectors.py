"""The fixed cases of cores also hold for queues in stores."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import pytest
from tests.providers.priority import test_core_costs as costs
from tests.providers.priority import test_core_sessions as sessions
from tests.providers.priority import test_core_vectors as vectors
from tests.providers.priority.places import PLACES
from tests.providers.priority.stored_core import Stage, StoredCore

from millstream.providers.priority import QueueSettings

OF_CORES = {
    vectors.test_a_queue_made_on_use_is_as_its_template_or_the_default_has_it,  # uses no queue
    vectors.test_time_does_not_go_back_over_a_restart,  # opens a core from rows
    vectors.test_the_next_queue_of_a_name_goes_on_counting,  # opens a core from counters
    sessions.test_what_was_acknowledged_is_stale_also_if_nothing_was_remembered_of_it,  # uses rows
    sessions.test_answers_of_every_kind_outlive_a_restart,  # uses rows
    sessions.test_what_a_batch_took_outlives_a_restart,  # uses rows
    sessions.test_what_a_message_was_enqueued_with_is_known_after_a_restart,  # uses rows
}
"""Cases that only apply to a core."""
OF_COSTS = (
    costs.test_a_crowd_of_a_held_value_ahead_costs_one_parking,
    costs.test_a_step_that_met_many_held_values_goes_on_with_the_next,
)
OF_SHARDS = {20}
"""Cases with more than one queue. See tests/providers/priority/test_shards.py."""
VECTORS = set(range(1, 21))


class Case(NamedTuple):
    """One case of a core, with its parameters."""

    name: str
    test: Callable[..., None]
    given: dict[str, Any]
    is_spare: bool

    def holds_of(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Run the case with queues in stores of a kind."""
        with Stage(kind) as stage:

            def opened(settings: QueueSettings = vectors.SIMPLE) -> StoredCore:
                return stage.core(settings)

            monkeypatch.setattr(vectors, "opened", opened)
            self.test(**self.given)


def expanded(test: Callable[..., None]) -> Iterator[Case]:
    """Yield a case for each row of its parameters."""
    marks = getattr(test, "pytestmark", ())
    tables = [table(*mark.args) for mark in marks if mark.name == "parametrize"]
    is_spare = any(mark.name == "spare" for mark in marks)
    name = test.__name__.removeprefix("test_")
    for at, rows in enumerate(product(*tables)):
        given = {key: value for row in rows for key, value in row.items()}
        yield Case(f"{name}-{at}" if tables else name, test, given, is_spare)


def table(names: str | tuple[str, ...], values: list[Any]) -> list[dict[str, Any]]:
    if isinstance(names, str):
        return [{names: value} for value in values]
    return [dict(zip(names, row, strict=True)) for row in values]


def cases() -> list[Case]:
    """All vectors, sessions and counted costs, except for the cases of cores alone."""
    modules = (vectors, sessions)
    found = [one for module in modules for name, one in vars(module).items() if name[:5] == "test_"]
    tests = [test for test in found if test not in OF_CORES]
    return [case for test in (*tests, *OF_COSTS) for case in expanded(test)]


CASES = cases()
PARAMETERS = [
    pytest.param(case, marks=[pytest.mark.spare] * case.is_spare, id=case.name) for case in CASES
]
every_case = partial(pytest.mark.parametrize, "case", PARAMETERS)


def test_every_vector_is_asked_of_stores() -> None:
    sources = {inspect.getsource(case.test) for case in CASES}
    found = {int(number) for source in sources for number in re.findall(r"C16\.(\d+)", source)}
    assert found == VECTORS - OF_SHARDS
    assert len(CASES) >= 50


@pytest.mark.parametrize("kind", PLACES)
@every_case()
def test_a_case_of_the_core_holds_of_a_store(
    case: Case, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.holds_of(kind, monkeypatch)
