"""The generator, which accepts no messages, keeps the contract; two broken ones do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from millstream.providers.generator import Generated, GeneratorOptions, GeneratorQueues, adapter
from millstream.providers.generator.adapter import GeneratorAdapter, GeneratorReceiver
from millstream.runtime import ConfigError
from millstream.streams import (
    Capability,
    HashRingMapper,
    OutMessage,
    StreamId,
    StreamNamespace,
    Token,
)
from millstream.streams.testing import (
    ADAPTER_CHECKS,
    AdapterCheck,
    ContractBroken,
    run_adapter_check,
)

TICKS = StreamNamespace("ticks", str, provider="contract")
MAPPER = HashRingMapper(queues=2)
KEYS = {MAPPER.queue_for(StreamId("ticks", f"key-{n}")): f"key-{n}" for n in range(20)}


def generator() -> GeneratorQueues:
    what = Generated(TICKS, lambda key, number: f"{key}: event {number}")
    options = GeneratorOptions(streams=tuple(KEYS.values()), events_per_stream=None)
    return GeneratorQueues(what, options=options)


def generated(queue: str, count: int) -> list[bytes]:
    return [TICKS.codec.encode(f"{KEYS[queue]}: event {number}") for number in range(count)]


@pytest.mark.parametrize("check", ADAPTER_CHECKS, ids=str)
async def test_the_generator_keeps_the_contract(check: AdapterCheck) -> None:
    await run_adapter_check(check, generator, generated, MAPPER)


async def test_what_is_skipped_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    named = {check.name: check for check in ADAPTER_CHECKS}
    leases = named["extending_holds_a_message"]
    why = await run_adapter_check(leases, generator, generated, MAPPER)
    assert why == "LEASED is not declared"
    assert capsys.readouterr().out == f"skipped: {leases}: {why}\n"
    writes = named["a_list_is_stored_whole"]
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
