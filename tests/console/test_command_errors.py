"""The errors of commands name the option that is wrong, never an argument of Python."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from millstream.balancers import DeploymentBalancer
from millstream.console.main import main
from millstream.providers.memory import MemoryQueues
from millstream.providers.priority import MemoryStore, PriorityQueues
from millstream.runtime import LocalCluster
from millstream.streams import HashRingMapper, PersistentStreams

COMMANDS = {
    "why": ("why", "lines", "a"),
    "queues pause": ("queues", "pause", "queue-0"),
    "queues resume": ("queues", "resume", "queue-0"),
    "queues readers": ("queues", "readers"),
    "queues drop-reader": ("queues", "drop-reader", "somebody"),
    "streams pause": ("streams", "pause", "lines", "a"),
    "streams resume": ("streams", "resume", "lines", "a"),
    "dead-letters ls": ("dead-letters", "ls"),
    "dead-letters show": ("dead-letters", "show", "x"),
    "dead-letters redrive": ("dead-letters", "redrive", "x"),
    "dead-letters delete": ("dead-letters", "delete", "x"),
    "staged list": ("staged", "list"),
    "staged show": ("staged", "show", "lines", "w"),
    "staged abandon": ("staged", "abandon", "lines", "w", "1"),
    "pq ls": ("pq", "ls"),
    "pq show": ("pq", "show", "nowhere"),
    "pq dequeue": ("pq", "dequeue", "nowhere"),
    "ledger recover": ("ledger", "recover", "7"),
}
PYTHON = re.compile(r"\w\(\w+=|\bconnect\(\)|Silo\(|StreamNamespace\(|Traceback")


def streams() -> PersistentStreams:
    mapper = HashRingMapper(queues=1)
    return PersistentStreams(MemoryQueues(), mapper=mapper, balancer=DeploymentBalancer())


class Shell:
    """Runs commands in a thread, because they have their own event loop."""

    def __init__(self, gateway: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.gateway = gateway
        self._capsys = capsys

    async def run(self, *words: str) -> tuple[int, str]:
        """Run a command, and return its exit code and its error text."""
        try:
            code = await asyncio.to_thread(main, list(words))
        except SystemExit as ended:
            assert isinstance(ended.code, int)
            code = ended.code
        return code, self._capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
async def test_a_mistake_in_how_to_connect_is_told_by_the_option(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words, parts = COMMANDS[name], {"priority": lambda: PriorityQueues(MemoryStore())}
    async with LocalCluster(grains=[], streams={"default": streams}, parts=parts) as cluster:
        gateway = cluster.silos[0].gateway
        shell = Shell(gateway, capsys)
        for wrong, code_wanted, told in (
            (("--gateway", "nonsense"), 2, "--gateway: 'nonsense' is not an address"),
            (("--gateway", "127.0.0.1:1"), 1, "127.0.0.1:1: no process listens there"),
            (
                ("--gateway", gateway, "--cluster", "prod"),
                1,
                "cluster 'dev', not 'prod': pass the name",
            ),
            (
                ("--gateway", gateway, "--cluster", "\udc80"),
                2,
                "--cluster: '\\udc80' cannot be encoded",
            ),
            (("--gateway", gateway, "--operator", str(tmp_path)), 1, "--operator: "),
        ):
            if name == "ledger recover" and "\udc80" in wrong:
                continue  # its `--cluster` is also an option of the store
            code, text = await shell.run(*words, *wrong)
            assert code == code_wanted and told in text, (wrong, code, text)
            assert not PYTHON.search(text), text


@pytest.mark.parametrize(
    "words",
    [
        ("why", "", "a"),
        ("why", "a/b", "k"),
        ("why", "lines", "\udc80"),
        ("why", "lines", "a", "--provider", "a/b"),
        ("streams", "pause", "", "a"),
        ("streams", "pause", "lines", "\udc80"),
        ("streams", "resume", "lines", "a", "--provider", ""),
        ("queues", "pause", "\udc80"),
        ("queues", "drop-reader", "\udc80"),
        ("dead-letters", "ls", "--subscription", "\udc80"),
        ("dead-letters", "ls", "--limit", "0"),
        ("dead-letters", "show", "\udc80"),
        ("staged", "show", "a/b", "w"),
        ("staged", "show", "lines", "\udc80"),
        ("pq", "ls", "--part", "a/b"),
        ("ledger", "recover", "7", "--provider", "a/b"),
        ("pq", "dequeue", "q", "--wait", "-1"),
        ("pq", "dequeue", "q", "--wait", "nan"),
        ("pq", "dequeue", "q", "--lease", "0"),
        ("pq", "extend", "q", "1.1", "--lease", "-2"),
        ("pq", "release", "q", "1.1", "--delay", "inf"),
        ("pq", "enqueue", "q", "x", "--invisible", "-1"),
        ("pq", "enqueue", "q", "x", "--lease", "soon"),
        ("pq", "list", "q", "--after", "-1"),
        ("pq", "serve", "--port", "65536"),
        ("staged", "abandon", "lines", "w", "-1"),
        ("ledger", "recover", "7", "--wait", "-1"),
    ],
    ids=repr,
)
async def test_a_name_that_cannot_be_is_told_before_anything_is_connected(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = await Shell("", capsys).run(*words)
    assert code == 2 and "argument " in text
    assert not PYTHON.search(text), text


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    told = re.search(r"\{(.+?)\}", capsys.readouterr().out)
    assert told is not None
    wanted = {"run", "certs", *(name.partition(" ")[0] for name in COMMANDS), "index", "store"}
    assert set(told[1].split(",")) == wanted
