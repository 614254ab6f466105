"""The limits of unanswered calls of a writer outside: their number, and their bytes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.conditions import spin

from millstream.streams.extending import NumberedPublisher
from millstream.streams.publishing import numbered
from millstream.streams.staging import stager
from millstream.streams.staging.coordinator import Begun
from millstream.streams.staging.stager import StagedAttempt, StagedWriterName
from millstream.streams.staging.target import Staged, StagingTarget

LIMIT = 1_000


class Gateway:
    """Answers when no other task can run; notes the calls that are out."""

    frame_bytes_max = 1 << 20

    def __init__(self) -> None:
        self.out: list[int] = []
        self.most: list[tuple[int, int]] = []

    async def call(self, key: str, target: str, method: Any, *args: Any) -> Any:
        if method is StagingTarget.begin:
            return Begun()
        size = len(bytes(args[-1]))
        self.out.append(size)
        self.most.append((len(self.out), sum(self.out)))
        await spin(50)
        self.out.remove(size)
        return Staged(["q"], [1]) if target.startswith("$staging") else 1


def body(size: int) -> bytes:
    return msgspec.msgpack.encode(b"x" * (size - 2))


SIZES = [100] * 30 + [400] * 10 + [3_000, 100, 100, 3_000]


async def staged(gateway: Any) -> None:
    name = StagedWriterName("default", "n", "w")
    attempt = StagedAttempt(gateway, name, 0, 0, "u", window=8)
    assert await attempt.begin()
    for size in SIZES:
        await attempt.stage(body(size))
    assert (await attempt.finish()).messages == len(SIZES)


async def published(gateway: Any) -> None:
    publisher = NumberedPublisher(gateway, "n", "w", "x", window=8)
    for size in SIZES:
        await publisher.publish(body(size), 1)
        publisher.check()
    await publisher.drain()
    assert publisher.accepted == len(SIZES)


@pytest.mark.parametrize("write", [staged, published])
async def test_calls_that_are_out_are_bounded_by_bytes_as_well(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (numbered, stager):
        monkeypatch.setattr(module, "WINDOW_BYTES_MAX", LIMIT)
    gateway = Gateway()
    await write(gateway)
    assert max(count for count, _ in gateway.most) == 8
    assert all(count == 1 or size <= LIMIT for count, size in gateway.most)
    assert max(size for count, size in gateway.most if count > 1) > LIMIT - 400
    assert gateway.out == []
