"""Type checkers accept correct user code of the public surface, and refuse mistakes.

`ok/` has no error. In `bad/` a line that must be refused ends with a mark: `# E` for both checkers,
`# E[mypy]` or `# E[pyright]` for one. All other lines have no error. The settings of this
repository do not apply: mypy runs with `--strict`, pyright in its standard mode.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SOURCES = [str(ROOT / name) for name in ("runtime", "streams", "providers", "balancers", "console")]
SUBJECTS = [
    "adapters",
    "buffers",
    "grains",
    "jobs",
    "observers",
    "plugins",
    "priority",
    "results",
    "silos",
    "streams",
    "topics",
]
PUBLIC = [
    "millstream.runtime",
    "millstream.streams",
    "millstream.balancers",
    "millstream.providers.generator",
    "millstream.providers.ledger",
    "millstream.providers.memory",
    "millstream.providers.priority",
    "millstream.providers.sqlite",
]
MARK = re.compile(r"# E(?:\[(mypy|pyright)\])?$")

Line = tuple[Path, int]
Found = Mapping[Line, str]


def run(command: list[str], work: Path) -> str:
    """Return the output of a checker, which must end with 0 (no error) or 1 (errors)."""
    # a search path instead of the installed package, so that this checkout is checked
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=work, env=env, timeout=110)
    assert done.returncode in (0, 1), f"{command} ended with {done.returncode}\n{done.stderr}"
    return done.stdout


def run_mypy(folders: Sequence[Path], work: Path) -> Found:
    """Run mypy once for each folder, because modules have equal names; the runs share a cache."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--output=json"]
    found: dict[Line, str] = {}
    for folder in folders:
        output = run([*command, "--cache-dir", str(work / "cache"), str(folder)], work)
        for line in filter(None, output.splitlines()):
            one = json.loads(line)
            if one["severity"] == "error":
                place = ((work / one["file"]).resolve(), one["line"])
                found.setdefault(place, f"{one['message']} [{one['code']}]")
    return found


def run_pyright(folders: Sequence[Path], work: Path) -> Found:
    config = {"typeCheckingMode": "standard", "extraPaths": SOURCES}
    (work / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    found: dict[Line, str] = {}
    for one in json.loads(run([*command, *map(str, folders)], work))["generalDiagnostics"]:
        if one["severity"] == "error":
            place = (Path(one["file"]).resolve(), one["range"]["start"]["line"] + 1)
            found.setdefault(place, f"{one['message']} [{one.get('rule', 'syntax')}]")
    return found


CHECKERS: dict[str, Callable[[Sequence[Path], Path], Found]] = {
    "mypy": run_mypy,
    "pyright": run_pyright,
}


def marked(folder: Path, checker: str) -> set[Line]:
    """Return the lines that a checker must refuse."""
    return {
        (path.resolve(), number)
        for path in folder.glob("*.py")
        for number, text in enumerate(path.read_text().splitlines(), 1)
        if (mark := MARK.search(text)) and mark[1] in (None, checker)
    }


def text_of(line: Line) -> str:
    """Return `file:line` and the code of a line."""
    path, number = line
    return f"{path.name}:{number}: {path.read_text().splitlines()[number - 1].strip()}"


def differences(wanted: set[Line], found: Found) -> list[str]:
    """Describe refused lines without a mark, and accepted lines with one."""
    surprises = [f"{text_of(line)}\n    {found[line]}" for line in sorted(set(found) - wanted)]
    passed = [f"{text_of(line)}\n    is not refused" for line in sorted(wanted - set(found))]
    return surprises + passed


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_users_code_is_refused_exactly_where_it_is_marked(checker: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    folders = [HERE / "ok", HERE / "bad"]
    found = CHECKERS[checker](folders, tmp_path)
    wrong = differences({line for one in folders for line in marked(one, checker)}, found)
    assert not wrong, f"{checker}: {len(wrong)} lines\n" + "\n".join(wrong)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_code_that_passes_the_checkers_is_accepted_when_it_is_loaded(subject: str) -> None:
    name = f"users_{subject}"
    spec = importlib.util.spec_from_file_location(name, HERE / "ok" / f"{subject}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]


@pytest.mark.parametrize("checker", CHECKERS)
def test_marks_are_in_every_file_of_bad_and_in_none_of_ok(checker: str) -> None:
    assert {path.stem for path, _ in marked(HERE / "bad", checker)} == set(SUBJECTS)
    assert not marked(HERE / "ok", checker)
    assert {path.stem for path in (HERE / "ok").glob("*.py")} == set(SUBJECTS)


def test_every_part_says_that_it_has_types() -> None:
    found = [part for source in SOURCES for part in Path(source, "millstream").iterdir()]
    parts = [part for part in found if part.is_dir() and not part.name.startswith("_")]
    assert len(parts) == len(SOURCES)
    assert not [part for part in parts if not (part / "py.typed").is_file()]


def imported(path: Path) -> set[tuple[str, str]]:
    """Return module and name of all names that a file imports by name."""
    return {
        (node.module or "", alias.name)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_used_by_right_code(module: str) -> None:
    used = set().union(*(imported(HERE / "ok" / f"{subject}.py") for subject in SUBJECTS))
    # streams re-exports some errors of runtime
    names = {name for _, name in used}
    assert not [name for name in importlib.import_module(module).__all__ if name not in names]


def test_differences_are_told_both_ways_with_file_line_and_text(tmp_path: Path) -> None:
    path = tmp_path / "user.py"
    path.write_text("right\nwrong  # E\nalso wrong  # E[mypy]\nunmarked # E or not\n")
    wanted = marked(tmp_path, "mypy")
    assert wanted == {(path, 2), (path, 3)}
    assert marked(tmp_path, "pyright") == {(path, 2)}
    assert differences(wanted, {(path, 2): "no", (path, 3): "no"}) == []
    assert differences(wanted, {(path, 2): "no", (path, 4): "refused"}) == [
        "user.py:4: unmarked # E or not\n    refused",
        "user.py:3: also wrong  # E[mypy]\n    is not refused",
    ]
