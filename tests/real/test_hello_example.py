"""The example Hello World prints the lines of its README."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from tests.imports import ROOT

pytestmark = pytest.mark.real
EXAMPLE = ROOT / "examples" / "hello_world"


def test_the_program_prints_the_lines_of_its_readme() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "main.py")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (shown,) = re.findall(
        r"```console\n\$ [^\n]*\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.S
    )
    assert done.stdout == shown
