"""Repairing ledgers of a running cluster: a silo does it.

Owns: `running_cluster`.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millstream.console.gateway import connect_gateway
from millstream.providers.ledger.inspection import EndAnswer, LossAnswer, RepairTarget
from millstream.runtime import Client, RuntimeOptions
from millstream.runtime.extending import ask_gateway

__all__ = ["ANSWER_S", "running_cluster"]

ANSWER_S = 600.0
"""So long a silo may read a ledger to say what is missing."""


class RemoteTarget:
    """The target of one silo, as a client asks it."""

    def __init__(self, client: Client, provider: str) -> None:
        self._client = client
        self._target = f"{RepairTarget.target_name}/{provider}"

    async def recover(self, ledger: int, wait_s: float, /) -> EndAnswer:
        return await ask_gateway(
            self._client, "", self._target, RepairTarget.recover, ledger, wait_s
        )

    async def left(self, ledger: int, gone: list[str], /) -> LossAnswer:
        return await ask_gateway(self._client, "", self._target, RepairTarget.left, ledger, gone)

    async def give_up(self, ledger: int, gone: list[str], /) -> LossAnswer:
        method = RepairTarget.give_up
        return await ask_gateway(self._client, "", self._target, method, ledger, gone)


@asynccontextmanager
async def running_cluster(arguments: argparse.Namespace) -> AsyncIterator[RemoteTarget]:
    """Connect to a gateway. Raises what clients raise."""
    options = RuntimeOptions(call_timeout_s=ANSWER_S)
    async with connect_gateway(arguments, options) as client:
        yield RemoteTarget(client, arguments.provider)
