"""Programs of guides with several files and processes run as their pages say.

A block `python title="NAME"` of a page is a file. A block `sh title="terminal"` has the commands,
in order. A command that ends with `&` starts a silo, which must become active and end with exit
code 0 on SIGTERM. Other commands must end with 0 and print the text of the `text` block after them.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GUIDES = ROOT / "docs" / "guides"
FILE = re.compile(r"^```python title=\"(?!program\.py)(\S+)\"\n(.*?)^```$", re.M | re.S)
COMMANDS = re.compile(
    r"^```sh title=\"terminal\"\n(.*?)^```\n(?:```text\n(.*?)^```$)?", re.M | re.S
)
PORTS = re.compile(r"\b770\d\b")

pytestmark = pytest.mark.real


def free_port(_: str) -> str:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return str(found.getsockname()[1])


def with_free_ports(text: str) -> str:
    """Replace the ports of the page by free ports."""
    ports = {port: free_port(port) for port in PORTS.findall(text)}
    return PORTS.sub(lambda found: ports[found.group()], text)


def words_of(line: str) -> list[str]:
    command, *words = line.removesuffix("&").split()
    return [
        sys.executable,
        *(["-m", "millstream.console"] if command == "millstream" else []),
        *words,
    ]


class Silos:
    """The programs that a page starts in the background."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._silos: list[tuple[str, subprocess.Popen[str]]] = []

    def start(self, line: str) -> None:
        silo = subprocess.Popen(
            words_of(line), cwd=self._folder, stderr=subprocess.PIPE, text=True, env=environment()
        )
        self._silos.append((line, silo))
        assert silo.stderr is not None
        told = ""
        while " is active at " not in told:
            told = silo.stderr.readline()
            assert told, f"{line}: ended"

    def stop(self) -> None:
        for line, silo in self._silos:
            silo.send_signal(signal.SIGTERM)
            _, told = silo.communicate(timeout=30)
            assert silo.returncode == 0, f"{line}: {told}"

    def kill(self) -> None:
        for _, silo in self._silos:
            if silo.poll() is None:
                silo.kill()
                silo.communicate()


def environment() -> dict[str, str]:
    paths = [str(ROOT / "examples" / "custom_adapter"), *filter(None, sys.path)]
    # An installed Millstream has this entry point.
    plugin = {"PYTEST_PLUGINS": "millstream.pytest_plugin"}
    return {**os.environ, **plugin, "PYTHONPATH": os.pathsep.join(paths)}


@contextmanager
def silos(folder: Path) -> Iterator[Silos]:
    started = Silos(folder)
    try:
        yield started
        started.stop()
    finally:
        started.kill()


PAGES = [page for page in sorted(GUIDES.glob("*.md")) if COMMANDS.search(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_guide_do_what_it_says(page: Path, tmp_path: Path) -> None:
    text = with_free_ports(page.read_text())
    for name, content in FILE.findall(text):
        (tmp_path / name).write_text(content)
    with silos(tmp_path) as started:
        for commands, output in COMMANDS.findall(text):
            printed = ""
            for line in commands.splitlines():
                if line.endswith("&"):
                    started.start(line)
                else:
                    printed += run(line, tmp_path)
            assert not output or printed == output, commands


def run(line: str, folder: Path) -> str:
    done = subprocess.run(
        words_of(line), cwd=folder, capture_output=True, text=True, timeout=60, env=environment()
    )
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    return done.stdout


def test_the_first_guides_are_among_them() -> None:
    assert {"start.md", "cluster.md"} <= {page.name for page in PAGES}
