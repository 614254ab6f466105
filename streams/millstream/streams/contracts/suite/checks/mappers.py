"""Mappers: a stream has the same queue in every process, and a change is reported."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Collection, Sequence

from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.contracts.mapping import QueueMapper
from millstream.streams.contracts.queue import BringsMapper, QueueAdapter
from millstream.streams.contracts.suite.bench import COLLECT_S, POLL_S, AdapterBench
from millstream.streams.contracts.suite.check import CheckList
from millstream.streams.contracts.suite.hooks import without_hook
from millstream.streams.contracts.suite.verdict import ContractBroken, NotRun, expect

__all__ = ["placing"]

placing = CheckList()
STREAMS = [StreamId(f"n{number % 3}", f"key/{number}") for number in range(200)]
PROCESS_S = 60.0
UNREADABLE = 3  # exit status of a process that cannot rebuild the mapper
IN_ANOTHER_PROCESS = """
import json, pickle, sys
try:
    mapper, streams = pickle.load(sys.stdin.buffer)
except Exception as error:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    sys.exit(int(sys.argv[1]))
json.dump([mapper.queue_for(stream) for stream in streams], sys.stdout)
"""


@placing.check(generated=True)
async def queues_of_its_own_mapper_are_sound(bench: AdapterBench) -> None:
    """A mapper is pure: it names each queue once, and puts every stream into one of them."""
    mapper, again = find_mapper(bench), find_mapper(bench)
    queues = list(mapper.queues())
    is_so = bool(queues) and len(set(queues)) == len(queues) and queues == list(again.queues())
    expect(is_so, "the queues, each once, and the same at each call", queues)
    for stream in STREAMS:
        came = (mapper.queue_for(stream), mapper.queue_for(stream), again.queue_for(stream))
        expect(len(set(came)) == 1 and came[0] in queues, f"one queue of {queues}", came)


def find_mapper(bench: AdapterBench) -> QueueMapper:
    """The mapper of the adapter. Raises NotRun: it has none."""
    if not isinstance(bench.adapter.raw, BringsMapper):
        raise NotRun("the adapter does not implement `BringsMapper`")
    return bench.adapter.raw.mapper(lambda: None)


@placing.check(generated=True)
async def a_mapper_answers_alike_in_every_process(bench: AdapterBench) -> None:
    """Silos agree on the queue of a stream: the answer depends on nothing that differs between
    processes, as Python's `hash()` of texts and bytes does."""
    if not bench.has_mapper:
        raise NotRun("the provider has no mapper of its own")
    here = [bench.mapper.queue_for(stream) for stream in STREAMS]
    there = elsewhere(bench.mapper)
    for stream, mine, other in zip(STREAMS, here, there, strict=True):
        expect(mine == other, f"{mine} for {stream}, also in another process", other)


def elsewhere(mapper: QueueMapper) -> list[QueueId]:
    """The queues of all `STREAMS` as another process computes them.

    Raises NotRun: the mapper cannot be sent there; ContractBroken: it gives no answer there.
    """
    try:
        sent = pickle.dumps((mapper, STREAMS))
    except Exception as error:  # pickling may raise any error
        why = f"the mapper cannot be pickled for another process: {error}"
        raise NotRun(f"not run: {why}") from None
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS, str(UNREADABLE)],
        input=sent,
        capture_output=True,
        timeout=PROCESS_S,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths},
    )
    said = "".join(done.stderr.decode(errors="replace").strip().splitlines()[-1:])
    if done.returncode == UNREADABLE:
        raise NotRun(f"not run: the mapper cannot be rebuilt in another process: {said}")
    expect(done.returncode == 0, "the queues of the mapper in another process", said)
    found: list[QueueId] = json.loads(done.stdout)
    return found


@placing.check(generated=True)
async def a_change_of_the_layout_is_told(bench: AdapterBench) -> None:
    """When the broker has other queues, `changed` is called in every silo within 10 s. `mapper`
    then returns a mapper with another layout and a higher epoch, and the former mapper does not
    change."""
    find_mapper(bench)
    if bench.hooks.relayout is None:
        raise NotRun(without_hook("relayout"))
    told, silos = list[str](), {"a": bench.adapter, "b": await bench.another_silo()}
    before = {name: follow(silo.raw, told, name) for name, silo in silos.items()}
    layouts = {name: layout(mapper) for name, mapper in before.items()}
    epochs = {name: mapper.epoch for name, mapper in before.items()}
    await bench.hooks.relayout()
    await until_told(told, silos)
    for name, silo in silos.items():
        after = follow(silo.raw, told, name)
        wanted = "a mapper with another layout after the change"
        expect(layout(after) != layouts[name], wanted, after.queues())
        is_later = after.epoch > epochs[name]
        expect(is_later, f"a mapper epoch above {epochs[name]}", after.epoch)
        is_kept = (layout(before[name]), before[name].epoch) == (layouts[name], epochs[name])
        expect(is_kept, "the former mapper without a change", before[name].queues())


def follow(adapter: QueueAdapter, told: list[str], name: str) -> QueueMapper:
    """The mapper of a silo's adapter; `told` gets the silo's name when another mapper applies."""
    if not isinstance(adapter, BringsMapper):
        raise ContractBroken("an adapter with `mapper`", adapter)
    return adapter.mapper(lambda: told.append(name))


def layout(mapper: QueueMapper) -> tuple[Sequence[QueueId], Sequence[QueueId]]:
    """The queues of a mapper, and the queues of some streams."""
    return list(mapper.queues()), [mapper.queue_for(stream) for stream in STREAMS]


async def until_told(told: list[str], silos: Collection[str]) -> None:
    """Wait until every silo knows of a change."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + COLLECT_S
    while not set(silos) <= set(told):
        is_late = loop.time() > end_s
        wanted = f"calls of `changed` in {len(silos)} silos"
        expect(not is_late, wanted, f"calls in {len(set(told))}")
        await asyncio.sleep(POLL_S)
