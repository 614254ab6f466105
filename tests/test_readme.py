"""The program in README runs as it is printed there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.real
def test_the_program_in_readme_prints_each_balance(tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(programs) == 1
    (tmp_path / "program.py").write_text(programs[0])
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.returncode) == ("100.0\n80.0\n85.0\n", 0), done.stderr


def test_every_test_that_guarantees_name_exists() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text()
    for path, _, name in re.findall(r"`(tests/[\w/]+\.py)(::(\w+)\*?)?`", text):
        file = ROOT / path
        assert file.is_file(), path
        assert not name or name in file.read_text(), f"{path}::{name}"


def test_readme_says_what_it_is_then_how_to_install_it_then_shows_a_program() -> None:
    text = (ROOT / "README.md").read_text()
    headings = re.findall(r"^## (.+)$", text, re.M)
    assert headings[:2] == ["Install", "A program"]
    assert "docs/index.md" in text and "docs/not_there_yet.md" in text


def test_readme_is_short_and_its_program_shorter() -> None:
    text = (ROOT / "README.md").read_text()
    [program] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(text.split()) <= 700
    assert len([line for line in program.splitlines() if line.strip()]) <= 25
    assert "lambda" not in program and "sleep" not in program


def test_the_tables_of_figures_are_on_their_own_page() -> None:
    # the table of other systems, without figures
    assert (ROOT / "README.md").read_text().count("\n|") <= 8
    assert (ROOT / "docs" / "performance.md").read_text().count("\n|") > 20
