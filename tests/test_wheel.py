"""The wheel has the same modules as an editable install, so the tests test the shipped modules."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.imports import FOLDERS, ROOT, module_of

BUILD: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"][
    "build"
]
WHEEL: dict[str, list[str]] = BUILD["targets"]["wheel"]


def modules_below(path: Path, root: Path) -> set[str]:
    """Return the modules in a folder, by their names if `root` is an entry of `sys.path`."""
    found = {file.relative_to(root).with_suffix("").as_posix() for file in path.rglob("*.py")}
    return {name.removesuffix("/__init__").replace("/", ".") for name in found}


def in_wheel(included: list[str], sources: list[str]) -> set[str]:
    """Return the modules of each included folder, without the source root in front of their
    names."""
    found = set[str]()
    for folder in included:
        root = next((one for one in sources if folder.startswith(f"{one}/")), "")
        found |= modules_below(ROOT / folder, ROOT / root)
    return found


def in_editable_install() -> set[str]:
    """Return the modules below the directories that the install puts on `sys.path`."""
    return {
        name for root in BUILD["dev-mode-dirs"] for name in modules_below(ROOT / root, ROOT / root)
    }


def test_the_wheel_and_an_editable_install_have_the_same_modules() -> None:
    modules = {module_of(file) for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")}
    assert in_editable_install() == modules
    assert in_wheel(WHEEL["only-include"], WHEEL["sources"]) == modules
    assert {"millstream.runtime", "millstream.runtime.testing", "pyspark_millstream"} <= modules


@pytest.mark.parametrize("folder", WHEEL["only-include"])
def test_a_folder_that_the_wheel_leaves_out_is_seen(folder: str) -> None:
    included = [one for one in WHEEL["only-include"] if one != folder]
    assert in_wheel(included, WHEEL["sources"]) < in_editable_install()


@pytest.mark.parametrize("root", WHEEL["sources"])
def test_a_source_root_that_stays_in_the_names_is_seen(root: str) -> None:
    sources = [one for one in WHEEL["sources"] if one != root]
    assert in_wheel(WHEEL["only-include"], sources) != in_editable_install()
