"""The shape of the code is a test: imports point one way, sizes have limits, seams are the only
readers of clock, dice and sockets."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.imports import FOLDERS, ROOT, imported, imports_in, module_of, package_of

MAY_IMPORT = {
    "runtime": {"runtime"},
    "streams": {"runtime", "streams"},
    "providers": {"runtime", "streams", "providers"},
    "balancers": {"runtime", "streams", "balancers"},
    "console": set(FOLDERS),
}
MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|for now|placeholder|simplified version)\b")
CLOCK_AND_DICE = {"time", "random", "uuid", "secrets"}
# env reads the clock; the simulator's env and loop stand for it; the console shows wall time
MAY_READ_CLOCK = {
    "runtime/millstream/runtime/env.py",
    "runtime/millstream/runtime/testing/world/env.py",
}
FORBIDDEN_NAMES = {"utils.py", "helpers.py", "common.py", "util.py", "helper.py", "misc.py"}


def sources() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from sorted((ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


ALL = [pytest.param(path, id=name_of(path)) for path in sources()]


@pytest.mark.parametrize("path", ALL)
def test_module_imports_only_what_its_folder_may(path: Path) -> None:
    folder = path.relative_to(ROOT).parts[0]
    for module in imported(path):
        parts = module.split(".")
        if parts[0] == "millstream" and len(parts) > 1:
            assert parts[1] in MAY_IMPORT[folder], f"{name_of(path)} imports {module}"
        assert parts[0] not in FOLDERS, f"{name_of(path)} imports {module} from the clone's root"


@pytest.mark.parametrize("path", ALL)
def test_module_and_its_functions_keep_their_size(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= MODULE_LINES_MAX, f"{name_of(path)} is too long: split by noun"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or 0) - node.lineno + 1
            assert size < FUNCTION_LINES_MAX, f"{name_of(path)}:{node.lineno} {node.name}"


@pytest.mark.parametrize("path", ALL)
def test_module_reads_clock_and_dice_only_in_env(path: Path) -> None:
    if name_of(path) in MAY_READ_CLOCK:
        return
    text = path.read_text().replace("from uuid import UUID\n", "")  # the type alone
    found = CLOCK_AND_DICE & {name.split(".")[0] for name in imports_in(text, package_of(path))}
    assert not found, f"{name_of(path)} imports {found}"


@pytest.mark.parametrize("path", ALL)
def test_module_says_what_it_is_and_is_finished(path: Path) -> None:
    text = path.read_text()
    assert not text.strip() or ast.get_docstring(ast.parse(text)), f"{name_of(path)}: no docstring"
    assert not UNFINISHED.search(text), f"{name_of(path)}: words of unfinished work"
    assert path.name not in FORBIDDEN_NAMES


def test_providers_and_their_siblings_do_not_import_each_other() -> None:
    base = ROOT / "providers" / "millstream" / "providers"
    for path in base.rglob("*.py"):
        own = path.relative_to(base).parts[0]
        for module in imported(path):
            parts = module.split(".")
            if parts[:2] == ["millstream", "providers"] and len(parts) > 2:
                assert parts[2] == own, f"{name_of(path)} imports {module}"


def test_no_root_init_breaks_the_namespace_package() -> None:
    assert not [p for p in ROOT.glob("*/millstream/__init__.py")]


OUTSIDE = [path for path in sources() if path.relative_to(ROOT).parts[0] != "runtime"]
SEAMS = {"", ".extending", ".wire", ".run", ".testing"}  # of the runtime, for those built on it
OWN_NAMES = re.compile(r"(?<!\w)_+millstream\w*")


@pytest.mark.parametrize("path", OUTSIDE, ids=name_of)
def test_what_is_built_on_the_runtime_knows_its_seams_alone(path: Path) -> None:
    assert not inside_of_runtime(imported(path)), name_of(path)
    found = OWN_NAMES.findall(path.read_text())
    assert not found, f"{name_of(path)} reaches into the runtime: {found}"


def inside_of_runtime(names: set[str]) -> set[str]:
    """The modules of the runtime that are among the names, but for its seams."""
    prefix = "millstream.runtime"
    modules = {
        module_of(file) for file in (ROOT / "runtime" / "millstream" / "runtime").rglob("*.py")
    }
    return {name for name in names & modules if name.removeprefix(prefix) not in SEAMS}


PLANTED = {
    "from millstream.runtime.turns.request import Request": "millstream.runtime.turns.request",
    "from millstream.runtime import errors": "millstream.runtime.errors",
    "import millstream.runtime.testing.world.env": "millstream.runtime.testing.world.env",
}


@pytest.mark.parametrize("source", PLANTED)
def test_a_reach_into_the_runtime_is_seen(source: str) -> None:
    assert PLANTED[source] in inside_of_runtime(imports_in(source, "millstream.streams"))
    assert OWN_NAMES.search("grain._millstream.table") and OWN_NAMES.search("x.__millstream_spec__")
    assert not OWN_NAMES.search("import pyspark_millstream")


PRIVATE_WAITS = re.compile(r"^(async )?def (until|spin)\(", re.MULTILINE)


def test_tests_wait_by_one_pair_of_functions() -> None:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.name != "conditions.py":
            found = PRIVATE_WAITS.search(path.read_text())
            assert not found, f"{name_of(path)}: import it from tests.conditions"
