"""The list of long tests: a run replaces the names of the files that it has run."""

from __future__ import annotations

from tests.long_tests import LONG_S, updated


def test_a_run_replaces_the_names_of_its_files_and_keeps_the_others() -> None:
    before = {"tests/a.py::test_was_long", "tests/b.py::test_of_another_file"}
    cpu_s = {"tests/a.py::test_was_long": LONG_S / 2, "tests/a.py::test_is_long[x]": LONG_S}
    assert updated(before, cpu_s) == {
        "tests/a.py::test_is_long[x]",
        "tests/b.py::test_of_another_file",
    }
