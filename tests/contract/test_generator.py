"""The generator, which accepts no messages, keeps the contract; two broken ones do not."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import pytest
from tests.contract.proven import expect_run, holds_nothing

from millstream.providers.generator import Generated, GeneratorOptions, GeneratorQueues, adapter
from millstream.providers.generator.adapter import GeneratorAdapter, GeneratorReceiver
from millstream.runtime import ConfigError
from millstream.streams import (
    Capability,
    FunctionMapper,
    HashRingMapper,
    OutMessage,
    StreamId,
    StreamNamespace,
    Token,
)
from millstream.streams.testing import (
    ADAPTER_CHECKS,
    AdapterCheck,
    AdapterHooks,
    ContractBroken,
    run_adapter_check,
)

TICKS = StreamNamespace("ticks", str, provider="contract")
MAPPER = HashRingMapper(queues=2)
KEYS = {MAPPER.queue_for(StreamId("ticks", f"key-{n}")): f"key-{n}" for n in range(20)}
CHECKS = {check.name: check for check in ADAPTER_CHECKS}


def generator() -> GeneratorQueues:
    what = Generated(TICKS, lambda key, number: f"{key}: event {number}")
    options = GeneratorOptions(streams=tuple(KEYS.values()), events_per_stream=None)
    return GeneratorQueues(what, options=options)


def generated(queue: str, count: int) -> list[bytes]:
    return [TICKS.codec.encode(f"{KEYS[queue]}: event {number}") for number in range(count)]


@pytest.mark.parametrize("check", ADAPTER_CHECKS, ids=str)
async def test_the_generator_keeps_the_contract(check: AdapterCheck) -> None:
    hooks = AdapterHooks(kill=holds_nothing)
    expect_run(await run_adapter_check(check, generator, generated, MAPPER, hooks))


def refuses_a_file() -> HashRingMapper:
    raise AssertionError("made elsewhere only")


class Unpicklable(HashRingMapper):
    __slots__ = ()

    def __reduce__(self) -> str:
        raise TypeError("it has a connection")


class OfThisProcess(HashRingMapper):
    """A mapper that no other process can make."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return refuses_a_file, ()


def by_hash(stream: StreamId, queues: int) -> int:
    return hash(stream) % queues


def by_parent(stream: StreamId, queues: int) -> int:
    if str(os.getpid()) != os.environ["PARENT"]:
        raise ValueError("this is another process")
    return 0


def by_length(stream: StreamId, queues: int) -> int:
    return len(stream.key) % queues


async def test_a_mapper_is_asked_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARENT", str(os.getpid()))
    check = CHECKS["a_mapper_answers_alike_in_every_process"]
    sound = FunctionMapper(queues=2, by=by_length, name="by length")
    assert await run_adapter_check(check, generator, generated, sound) == ""
    for mapper, why in (
        (Unpicklable(queues=2), "cannot be pickled.*it has a connection"),
        (
            OfThisProcess(queues=2),
            "cannot be rebuilt.*AssertionError: made elsewhere only",
        ),
    ):
        assert re.match(
            f"not run: the mapper {why}",
            await run_adapter_check(check, generator, generated, mapper),
        )
    for by, came in ((by_hash, "in another process"), (by_parent, "StreamError.*another process")):
        unsound = FunctionMapper(queues=2, by=by, name="unsound")
        with pytest.raises(ContractBroken, match=came):
            await run_adapter_check(check, generator, generated, unsound)


async def test_a_missing_hook_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    check = CHECKS["a_process_that_died_keeps_no_queue"]
    why = await run_adapter_check(check, generator, generated, MAPPER)
    assert why == "not run: the hook `kill` is not given"
    assert capsys.readouterr().out == f"{check}: {why}\n"


async def test_what_is_skipped_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    leases = CHECKS["extending_holds_a_message"]
    why = await run_adapter_check(leases, generator, generated, MAPPER)
    assert why == "LEASED is not declared"
    assert capsys.readouterr().out == f"skipped: {leases}: {why}\n"
    writes = CHECKS["a_list_is_stored_whole"]
    why = await run_adapter_check(writes, generator, generated, MAPPER)
    assert why == "the provider accepts no messages"


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
        (OpenGenerator, "a_provider_without_messages_of_others_refuses_them"),
    ],
)
async def test_a_broken_read_only_adapter_is_refused(
    part: type[Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, part.__bases__[0].__name__, part)
    check = next(check for check in ADAPTER_CHECKS if check.name == name)
    with pytest.raises(ContractBroken):
        await run_adapter_check(check, generator, generated, MAPPER)


async def test_what_a_factory_lacks_is_named() -> None:
    class Half:
        capabilities = frozenset[Capability]()

        def open(self, provider: str, host: object) -> None: ...

    with pytest.raises(ConfigError, match="`open` is not async"):
        await run_adapter_check(ADAPTER_CHECKS[0], Half)  # type: ignore[arg-type]


async def test_capabilities_that_contradict_each_other_are_refused() -> None:
    class Confused(GeneratorQueues):
        capabilities = frozenset({Capability.LEASED, Capability.ORDERED})

    with pytest.raises(ConfigError, match="LEASED"):
        await run_adapter_check(ADAPTER_CHECKS[0], lambda: Confused(TICKS))
