"""Programs of guides with several files and processes run as their pages say.

A block `python title="NAME"` or `html title="NAME"` of a page is a file. A block
`sh title="terminal"` has the commands, in order. A command that ends with `&` starts a job, such as
a silo, which must print a line of READY. `kill -9 %N` kills the job with this number. `wait %N`
waits until the job has ended with exit code 0. Other commands must end with 0. All commands of a
block together must print the text of the `text` block after them. At the end, the jobs that still
run must end with exit code 0 on SIGTERM.
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
EXAMPLES = ROOT / "examples"
FILE = re.compile(r"^```(?:python|html) title=\"(?!program\.py)(\S+)\"\n(.*?)^```$", re.M | re.S)
COMMANDS = re.compile(
    r"^```sh title=\"terminal\"\n(.*?)^```\n(?:```text\n(.*?)^```$)?", re.M | re.S
)
PORTS = re.compile(r"\b(?:770\d|8080)\b")
KINDS = (".py", ".html")
READY = re.compile(r" is active at |Running on http|the matches begin")
FASTER = ("GOAL_EVERY_S = 1.0", "GOAL_EVERY_S = 0.1")

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


class Jobs:
    """The programs that a page starts in the background, numbered as a shell does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jobs: list[tuple[str, subprocess.Popen[str]]] = []

    def run(self, line: str) -> str:
        """Run a command of the page. Returns its output."""
        job = re.fullmatch(r"(kill -9|wait) %(\d)", line)
        if line.endswith("&"):
            self._start(line)
            return ""
        if job is None:
            return run(line, self._folder)
        _, process = self._jobs[int(job[2]) - 1]
        if job[1] == "kill -9":
            process.kill()
        printed, _ = process.communicate(timeout=60)
        assert process.returncode == (-signal.SIGKILL if job[1] == "kill -9" else 0), printed
        return printed if job[1] == "wait" else ""

    def _start(self, line: str) -> None:
        process = subprocess.Popen(
            words_of(line),
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**environment(), "PYTHONUNBUFFERED": "1"},
        )
        self._jobs.append((line, process))
        assert process.stdout is not None
        printed = ""
        while not READY.search(printed):
            printed = process.stdout.readline()
            assert printed, f"{line}: ended"

    def stop(self) -> None:
        for line, process in self._jobs:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                printed, _ = process.communicate(timeout=30)
                assert process.returncode == 0, f"{line}: {printed}"

    def kill(self) -> None:
        for _, process in self._jobs:
            if process.poll() is None:
                process.kill()
                process.communicate()


def environment() -> dict[str, str]:
    paths = [str(ROOT / "examples" / "custom_adapter"), *filter(None, sys.path)]
    # An installed Millstream has this entry point.
    plugin = {"PYTEST_PLUGINS": "millstream.pytest_plugin"}
    return {**os.environ, **plugin, "PYTHONPATH": os.pathsep.join(paths)}


@contextmanager
def jobs(folder: Path) -> Iterator[Jobs]:
    started = Jobs(folder)
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
        (tmp_path / name).write_text(content.replace(*FASTER))
    with jobs(tmp_path) as started:
        for commands, output in COMMANDS.findall(text):
            printed = "".join(map(started.run, commands.splitlines()))
            assert not output or printed == output, commands


def run(line: str, folder: Path) -> str:
    done = subprocess.run(
        words_of(line), cwd=folder, capture_output=True, text=True, timeout=60, env=environment()
    )
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", sorted(GUIDES.glob("*.md")), ids=lambda page: page.name)
def test_the_python_files_of_a_guide_compile(page: Path) -> None:
    for name, content in FILE.findall(page.read_text()):
        if name.endswith(".py"):
            compile(content, name, "exec")


def test_the_first_guides_are_among_them() -> None:
    assert {"start.md", "cluster.md", "recipes.md", "tutorial.md"} <= {page.name for page in PAGES}


def test_the_tutorial_shows_every_file_of_its_example() -> None:
    shown = dict(FILE.findall((GUIDES / "tutorial.md").read_text()))
    files = [path for path in (EXAMPLES / "live_scores").iterdir() if path.suffix in KINDS]
    assert shown == {path.name: path.read_text() for path in files}
