"""The fixed cases of spec/queues.md C16 hold of queues in stores as of cores."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import pytest
from tests.providers.priority import test_core_vectors as vectors
from tests.providers.priority.places import PLACES
from tests.providers.priority.stored_core import Stage, StoredCore

from millstream.providers.priority.core.settings import QueueSettings

INSIDE = re.compile(
    r"RowStore|drain|PriorityCore|counters\(|_contents|settings_for|parametrize|[0-9]0_000"
)


def cases() -> list[Callable[[], None]]:
    """Those that open a core and ask it, without parameters and many messages."""
    found = [one for name, one in vars(vectors).items() if name.startswith("test_")]
    return [one for one in found if "opened(" in (text := source(one)) and not INSIDE.search(text)]


def source(case: Callable[[], None]) -> str:
    return inspect.getsource(case)


CASES = cases()


def test_most_cases_are_here() -> None:
    assert len(CASES) >= 15


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.removeprefix("test_"))
def test_a_case_of_the_core_holds_of_a_store(
    case: Callable[[], None], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stage(kind) as stage:

        def opened(settings: QueueSettings = vectors.SIMPLE) -> StoredCore:
            return stage.core(settings)

        monkeypatch.setattr(vectors, "opened", opened)
        case()
