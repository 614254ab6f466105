"""Long tests take turns: each test runs for some commits."""

from __future__ import annotations

import pytest
from tests.rotation import names_to_leave_out, seed_of_commit

NAMES = [f"tests/{file}.py::test_it[{at}]" for file in "ab" for at in range(8)]


@pytest.mark.parametrize("every", [1, 2, 3, 4])
def test_as_many_commits_as_there_are_turns_run_each_test_once(every: int) -> None:
    runs = [set(NAMES) - names_to_leave_out(NAMES, every, seed) for seed in range(7, 7 + every)]
    assert sorted(name for names in runs for name in names) == sorted(NAMES)


def test_each_commit_runs_some_parameters_of_each_file() -> None:
    kept = set(NAMES) - names_to_leave_out(NAMES, 4, seed_of_commit())
    assert [sum(name.startswith(f"tests/{file}") for name in kept) for file in "ab"] == [2, 2]
