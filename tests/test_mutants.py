"""The planter of faults plants what it says; what is listed as equivalent is there."""

from __future__ import annotations

import ast

import pytest
from tests import mutants
from tests.mutants import EQUIVALENT, ROOMS, ROOT, Planter, equivalents

SOURCE = """
LIMIT = 3
class Box:
    size = 5
def take(self, count):
    assert count > 0
    if count >= 2 and not self.is_full:
        self.have = count
        self.note()
    return count + 1
"""


def planted(source: str) -> dict[str, str]:
    counter = Planter()
    counter.visit(ast.parse(source))
    return {
        name.partition(" | ")[2]: ast.unparse(Planter(number).visit(ast.parse(source)))
        for number, (name, _) in enumerate(counter.found)
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("comparison | count >= 2", "if count > 2 and"),
        ("boolean | count >= 2 and (not self.is_full)", "if count >= 2 or not"),
        ("not | not self.is_full", "if count >= 2 and self.is_full"),
        ("constant+1 | 2", "if count >= 3"),
        ("constant-1 | 1", "return count + 0"),
        ("statement | self.have = count", "        pass\n        self.note()"),
        ("statement | self.note()", "self.have = count\n        pass"),
        ("condition | if count >= 2 and (not self.is_full):", "if not (count >= 2"),
    ],
)
def test_each_kind_of_fault_is_planted_where_it_says(name: str, text: str) -> None:
    assert text in planted(SOURCE)[name]


def test_assertions_and_what_is_in_no_function_are_left_alone() -> None:
    for source in planted(SOURCE).values():
        assert all(text in source for text in ("LIMIT = 3", "size = 5", "assert count > 0"))


def test_cores_and_their_tests_are_there() -> None:
    for modules, tests in ROOMS.values():
        assert all((ROOT / path).exists() for path in (*modules, *tests))


def test_faults_listed_as_equivalent_are_there_and_have_a_reason() -> None:
    cores = {path for modules, _ in ROOMS.values() for path in modules}
    names = set()
    for module in cores:
        counter = Planter()
        counter.visit(ast.parse((ROOT / module).read_text()))
        names |= {f"{module} | {name}" for name, _ in counter.found}
    assert set(equivalents()) <= names, f"{EQUIVALENT.name} names what is gone"
    assert all(reason for reason in equivalents().values())


def test_an_unknown_room_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["mutants", "attic"])
    with pytest.raises(SystemExit):
        mutants.main()
    assert "no room is named attic" in capsys.readouterr().err
