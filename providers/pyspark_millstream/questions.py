"""Questions of the reader to the cluster: `ask_cluster`.

`background` owns the clients, and `QueueReads` the questions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from millstream.streams.rewinding.outside import QueueReads

from .background import background
from .read_options import ReadOptions

__all__ = ["ask_cluster"]

T = TypeVar("T")


async def ask_cluster(
    options: ReadOptions, ask: Callable[[QueueReads], Awaitable[T]], *, incarnation: str = ""
) -> T:
    """Ask the cluster and return its answer.

    `incarnation` is that of the provider that gave the positions in the question; "" without
    positions.
    """
    async with background().client(options) as client:
        return await ask(
            QueueReads(
                client.gateway,
                options.provider,
                options.namespace,
                patience_s=options.patience_s,
                incarnation=incarnation,
            )
        )
