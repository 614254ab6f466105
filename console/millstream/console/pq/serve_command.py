"""`millstream pq serve`: the HTTP API of a cluster's priority queues, until it is told to end."""

from __future__ import annotations

import argparse
import asyncio

from millstream.runtime import Client, ConfigError
from millstream.runtime.run import stop_signals

__all__ = ["serve"]


async def serve(client: Client, arguments: argparse.Namespace) -> int:
    """Serve until SIGINT, SIGTERM or SIGHUP. Raises ConfigError, OSError: the port is taken."""
    try:
        from millstream.providers.priority.http import PriorityApi
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is missing: pip install 'millstream[http]'") from error
    api = PriorityApi(
        client,
        token=arguments.token_file,
        host=arguments.host,
        port=arguments.port,
        part=arguments.part,
        insecure=arguments.insecure,
    )
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in stop_signals():
        loop.add_signal_handler(number, ended.set)
    async with api:
        print(f"priority queues of {arguments.cluster!r} at {api.url}", flush=True)
        await ended.wait()
    return 0
