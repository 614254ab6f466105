"""The contract suite of queue adapters, on those that need no cluster; broken ones must fail it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from millstream.providers.generator import Generated, GeneratorOptions, GeneratorQueues, adapter
from millstream.providers.generator.adapter import GeneratorAdapter, GeneratorReceiver
from millstream.runtime import ConfigError
from millstream.streams import (
    Capability,
    HashRingMapper,
    OutMessage,
    QueueMessage,
    StreamId,
    StreamNamespace,
    Token,
)
from millstream.streams.testing import ADAPTER_CHECKS, AdapterBench, run_adapter_check

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "custom_adapter"


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("jsonl_queues", EXAMPLE / "jsonl_queues.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["jsonl_queues"] = module
    spec.loader.exec_module(module)
    return module


jsonl = load_example()
Check = Callable[[AdapterBench], Coroutine[Any, Any, None]]


def check_named(name: str) -> Check:
    return next(check for check in ADAPTER_CHECKS if check.__name__ == f"check_{name}")


@pytest.mark.parametrize("check", ADAPTER_CHECKS, ids=lambda check: check.__name__)
async def test_example_adapter_keeps_the_contract(check: Check, tmp_path: Path) -> None:
    await run_adapter_check(check, lambda: jsonl.JsonLinesQueues(tmp_path))


TICKS = StreamNamespace("ticks", str, provider="contract")
MAPPER = HashRingMapper(queues=2)
KEYS = {MAPPER.queue_for(StreamId("ticks", f"key-{n}")): f"key-{n}" for n in range(20)}


def generator() -> GeneratorQueues:
    what = Generated(TICKS, lambda key, number: f"{key}: event {number}")
    options = GeneratorOptions(streams=tuple(KEYS.values()), events_per_stream=None)
    return GeneratorQueues(what, options=options)


def generated(queue: str, count: int) -> list[bytes]:
    return [TICKS.codec.encode(f"{KEYS[queue]}: event {number}") for number in range(count)]


@pytest.mark.parametrize("check", ADAPTER_CHECKS, ids=lambda check: check.__name__)
async def test_generator_keeps_the_contract(check: Check) -> None:
    await run_adapter_check(check, generator, generated, MAPPER)


class Reversed(jsonl.JsonLinesReceiver):  # type: ignore[misc, name-defined]
    async def read(self, events: int, size: int, wait_s: float) -> Sequence[QueueMessage]:
        return list(reversed(await super().read(events, size, wait_s)))


class Greedy(jsonl.JsonLinesReceiver):  # type: ignore[misc, name-defined]
    async def read(self, events: int, size: int, wait_s: float) -> Sequence[QueueMessage]:
        found: Sequence[QueueMessage] = await super().read(10**6, 10**9, wait_s)
        return found


class Forgetful(jsonl.JsonLinesReceiver):  # type: ignore[misc, name-defined]
    async def start(self, after: object) -> None:
        await super().start(None)


BROKEN = [
    (Reversed, "messages_are_read_in_order_with_rising_tokens"),
    (Greedy, "a_read_keeps_to_its_limits"),
    (Forgetful, "what_is_acknowledged_is_not_read_again"),
]


@pytest.mark.parametrize(("receiver", "name"), BROKEN)
async def test_a_broken_receiver_fails_the_check_of_its_rule(
    receiver: type[Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "JsonLinesReceiver", receiver)
    with pytest.raises(AssertionError):
        await run_adapter_check(check_named(name), lambda: jsonl.JsonLinesQueues(tmp_path))


class ForgetfulGenerator(GeneratorReceiver):
    async def start(self, after: Token | None, /) -> None:
        await super().start(None)


class OpenGenerator(GeneratorAdapter):
    async def enqueue(
        self, queue: str, messages: Sequence[OutMessage], mapper_epoch: int, /
    ) -> Sequence[Token | None]:
        return [None] * len(messages)


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (ForgetfulGenerator, "what_is_acknowledged_is_not_read_again"),
        (OpenGenerator, "a_read_only_adapter_refuses_messages"),
    ],
)
async def test_a_broken_read_only_adapter_fails_the_check_of_its_rule(
    part: type[Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, part.__bases__[0].__name__, part)
    with pytest.raises(AssertionError):
        await run_adapter_check(check_named(name), generator, generated, MAPPER)


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        (Capability.FENCED, "an_older_epoch_is_fenced"),
        (Capability.DEDUP, "a_repeated_sequence_is_stored_once"),
        (Capability.WAKEUP, "a_waiting_read_is_woken"),
    ],
)
async def test_a_capability_that_is_only_declared_fails(
    capability: Capability, name: str, tmp_path: Path
) -> None:
    class Boaster(jsonl.JsonLinesQueues):  # type: ignore[misc, name-defined]
        capabilities = frozenset({capability})

    with pytest.raises(AssertionError):
        await run_adapter_check(check_named(name), lambda: Boaster(tmp_path))


async def test_what_a_factory_lacks_is_named() -> None:
    class Half:
        capabilities = frozenset[Capability]()

        def open(self, provider: str, host: object) -> None: ...

    with pytest.raises(ConfigError, match="`open` is not async"):
        await run_adapter_check(ADAPTER_CHECKS[0], Half)  # type: ignore[arg-type]


@pytest.mark.real
def test_example_carries_a_stream() -> None:
    command = [sys.executable, str(EXAMPLE / "main.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    words = ["a: one", "a: two", "a: three", "b: one", "b: two", "b: three"]
    assert (done.stdout.splitlines(), done.returncode) == (words, 0), done.stderr
