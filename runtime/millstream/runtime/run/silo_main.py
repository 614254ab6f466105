"""The program of a child of `launcher.SiloProcess`: `python -m millstream.runtime.run.silo_main`.

It prints one JSON line when its silo is active. Then it runs until the pipe from its parent closes
or a signal arrives, and stops gracefully. Nothing but that line is on standard output. The child
ends whatever happens to its parent, at most `serve.STOP_S` after it was asked to. Standard input
has no effect. The exit codes are those of `serve`. People start silos by `millstream run`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys

from millstream.runtime.errors import MillstreamError
from millstream.runtime.silo.silo import Silo

from .process import LOG_FORMAT, settle_memory
from .serve import FAILED, serve
from .shutdown import run_to_end
from .target import load_target, make_silo

__all__ = ["main"]


async def run(silo: Silo, out: int, parent: int) -> int:
    """Run a silo until it is asked to stop, and return the exit code.

    `out` is the file descriptor for the line, which is closed after it. `parent` is a descriptor
    whose other end closes when the silo must stop, or when the parent ends.
    """
    asked = asyncio.Event()
    asyncio.get_running_loop().add_reader(parent, _read_parent, parent, asked)
    return await serve(silo, on_active=lambda silo: _tell(silo, out), asked=asked)


def _read_parent(parent: int, asked: asyncio.Event) -> None:
    if not os.read(parent, 4096):
        asyncio.get_running_loop().remove_reader(parent)
        asked.set()


def _take_stdout() -> int:
    """Return a new file descriptor of standard output, for the line with the address of the
    silo. From now on, all other output goes to standard error.
    """
    own = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return own


def _tell(silo: Silo, out: int) -> None:
    settle_memory()
    told = {"address": silo.address, "gateway": silo.gateway, "pid": os.getpid()}
    with open(out, "w") as file:
        file.write(json.dumps(told) + "\n")


def main() -> int:
    """Run `silo_main package.module:function '{"json": "arguments"}' PIPE`; return the exit code.

    The function makes a silo. The silo runs until a signal arrives, or until the parent process
    closes PIPE, a file descriptor.
    """
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    out = _take_stdout()
    text, arguments, parent = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    os.set_inheritable(parent, False)
    try:
        silo = make_silo(text, load_target(text), arguments)
        return run_to_end(run(silo, out, parent))
    except MillstreamError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
