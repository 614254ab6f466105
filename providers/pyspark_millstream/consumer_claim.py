"""The claim of a query's run on its `consumer`: one query at a time may use a name.

This module owns `ConsumerClaim`, and `millstream.streams.rewinding.claims` owns the claims. The
claim is renewed in the background, even during a long batch. A run that lost its claim gets an
error at its next batch and at each later one. A run that fails releases the name. Spark kills the
process of a run that is stopped, and the next run waits until the claim expires.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from concurrent.futures import Future

from millstream.runtime import ConfigError, Env, MillstreamError
from millstream.streams.rewinding.outside import RENEW_S

from .background import background
from .questions import ask_cluster
from .read_options import ReadOptions

__all__ = ["ConsumerClaim"]

log = logging.getLogger("millstream.spark")


class ConsumerClaim:
    """The claim of one run of a query on its `consumer`; without a consumer it does nothing.

    `run` identifies the run; it is "" without a consumer.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._name = options.consumer
        host, process = platform.node()[:100], os.getpid()
        self.run = f"{Env().new_id():016x}, process {process} on {host}" if self._name else ""
        self._renewing: Future[None] | None = None
        self._lost: ConfigError | None = None

    def hold(self) -> None:
        """Claim the name, or renew the claim.

        Blocks for up to `CLAIM_S` while a former run that did not release the name may still be
        alive. Raises ConfigError if another query uses the name or has taken it over. Raises
        SiloUnavailable and similar errors after `patience_s`.
        """
        if not self._name:
            return
        if self._lost is not None:
            raise self._lost
        if self._renewing is None or self._renewing.done():  # the clients were closed meanwhile
            background().run(
                ask_cluster(self._options, lambda reads: reads.claim_in_turn(self._name, self.run))
            )
            self._renewing = background().start(self._renew())
        else:
            background().run(self._renew_once())

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                await self._renew_once()
            except ConfigError:
                return  # `hold` raises it
            except MillstreamError as error:
                log.info("consumer %s: the claim could not be renewed: %s", self._name, error)

    async def _renew_once(self) -> None:
        holder = await ask_cluster(self._options, lambda reads: reads.claim(self._name, self.run))
        if holder.run != self.run:
            self._lost = ConfigError(
                f"consumer {self._name!r} was taken over by another run ({holder.run}), because "
                f"this run ({self.run}) did not renew its claim in time: let only one query at a "
                "time use a consumer, or give the other query another consumer"
            )
            raise self._lost

    def release(self) -> None:
        """Release the name. A failure is logged: the claim then expires after `CLAIM_S`."""
        if self._renewing is None:
            return
        self._renewing.cancel()
        self._renewing = None
        try:
            background().run(
                ask_cluster(self._options, lambda reads: reads.release(self._name, self.run))
            )
        except (MillstreamError, RuntimeError) as error:
            log.warning("consumer %s: the claim could not be released: %s", self._name, error)
