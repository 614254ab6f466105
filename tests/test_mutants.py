"""Planted faults are those that their names say, and faults listed as equivalent exist."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import pytest
from tests.mutants import __main__ as command
from tests.mutants.planting import (
    EQUIVALENT,
    ROOT,
    Mutant,
    Planter,
    equivalents,
    names_of,
)
from tests.mutants.rooms import ROOMS

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


HEAD = " in: if count >= 2 and (not self.is_full):"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("comparison | count >= 2" + HEAD, "if count > 2 and"),
        (
            "boolean | count >= 2 and (not self.is_full)" + HEAD,
            "if count >= 2 or not",
        ),
        (
            "not | not self.is_full" + HEAD,
            "if count >= 2 and self.is_full",
        ),
        ("constant+1 | 2" + HEAD, "if count >= 3"),
        ("constant-1 | 1 in: return count + 1", "return count + 0"),
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


def test_what_only_people_read_is_left_alone() -> None:
    quiet = """
def __str__(self):
    return self.name or 7
def take(self, count):
    log.info("taken", count + 1)
    raise ValueError(f"{count + 1} is too many")
"""
    assert not planted(quiet)


def test_a_condition_that_is_negated_by_another_fault_is_not_negated_twice() -> None:
    names = planted("def f(a):\n    if not a:\n        g()\n    while a == 1:\n        g()\n")
    assert not [name for name in names if name.startswith("condition")]


def test_faults_of_one_name_are_told_apart() -> None:
    names = planted("def f(a):\n    if a:\n        g()\n    else:\n        g()\n")
    assert {"statement | g()", "statement | g() #2"} <= set(names)


def test_a_fault_leaves_the_variables_of_a_function_what_they_are() -> None:
    source = "def f(a):\n    def g():\n        h(a)\n        return 1\n    return g\n"
    changed = planted(source)["statement | h(a)"]
    assert "        pass\n        return 1\n        if False:\n            h(a)\n" in changed
    source = "def f(a):\n    b = a\n    def g():\n        return b\n    return g\n"
    assert planted(source)["statement | b = a"].endswith("return g\n    if False:\n        b = a")


def test_every_fault_of_a_loop_can_be_compiled() -> None:
    source = "def f(a):\n    for b in a:\n        if b > 1:\n            continue\n        g(b)\n"
    for changed in planted(source).values():
        compile(changed, "loop", "exec")


def judged(monkeypatch: pytest.MonkeyPatch, *, sees: bool, is_equivalent: bool) -> command.Judge:
    """Run the command's judge on a package with one fault."""
    fault = Mutant("a/b.py", "a/b.py | f | not | x", 3, ast.Module([], []), is_equivalent)
    monkeypatch.setattr(command, "mutants_of", lambda module: [fault])
    trials: Any = SimpleNamespace(prepare=lambda module, tests: 1.0, seen=lambda mutant: sees)
    judge = command.Judge(["silo"], 0, 1, "")
    judge.judge(trials)
    return judge


@pytest.mark.parametrize(
    ("sees", "is_equivalent", "is_content"),
    [(True, False, True), (False, False, False), (False, True, True), (True, True, False)],
)
def test_who_is_listed_must_go_unseen_and_all_others_must_be_seen(
    monkeypatch: pytest.MonkeyPatch, sees: bool, is_equivalent: bool, is_content: bool
) -> None:
    judge = judged(monkeypatch, sees=sees, is_equivalent=is_equivalent)
    assert judge.is_content is is_content
    (row,) = judge.rows
    assert (row.planted, row.equivalent) == ((0, 1) if is_equivalent else (1, 0))


def test_cores_and_their_tests_are_there() -> None:
    for modules in ROOMS.values():
        for module, tests in modules.items():
            assert all((ROOT / path).exists() for path in (module, *tests))


@pytest.mark.spare
def test_faults_listed_as_equivalent_are_there_and_have_a_reason() -> None:
    cores = {path for modules in ROOMS.values() for path in modules}
    names = {name for module in cores for name, _ in names_of(module)}
    gone = set(equivalents()) - names
    assert not gone, f"{EQUIVALENT.name} names what is gone: {sorted(gone)}"
    assert all(reason for reason in equivalents().values())


def test_an_unknown_room_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["mutants", "attic"])
    with pytest.raises(SystemExit):
        command.main()
    assert "no room is named attic" in capsys.readouterr().err
