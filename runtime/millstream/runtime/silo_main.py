"""The child's side of `launcher.SiloProcess`: `python -m millstream.runtime.silo_main`.

Prints one JSON line when its silo is active, then runs until its standard input closes or a signal
comes, and stops gracefully.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import logging
import os
import signal
import sys
from typing import Any

from .silo import Silo

__all__ = ["main"]


async def run(silo: Silo) -> None:
    """Run a silo until somebody wants it to stop."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_reader(sys.stdin.fileno(), _read_stdin, stop)
    async with silo:
        gc.collect()
        gc.freeze()  # what was loaded so far stays: full collections need not look at it
        print(json.dumps({"address": silo.address, "gateway": silo.gateway}), flush=True)
        ended = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(silo.wait_stopped())]
        await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.cancel()
    loop.remove_reader(sys.stdin.fileno())


def _read_stdin(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        stop.set()


def main() -> None:
    """`silo_main package.module:function '{"json": "arguments"}'`."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    module, _, name = sys.argv[1].partition(":")
    factory: Any = getattr(importlib.import_module(module), name)
    arguments = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(run(factory(**arguments)))


def loop_factory() -> Any:
    """uvloop's where it is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
