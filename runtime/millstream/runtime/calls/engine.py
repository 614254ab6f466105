"""The parts of one process that make and serve calls, put together.

`CallEngine` is used only by the assembly of a silo and by a client. Everything in it belongs to one
event loop. It is created in two steps, because a `Locator` makes calls itself: the constructor
creates the parts that need no `Locator`, and `open` creates the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from millstream.runtime.codec.known_errors import KnownErrors
from millstream.runtime.definition.filters import NO_FILTERS, CallFilters
from millstream.runtime.definition.grain import Contract
from millstream.runtime.env import Env
from millstream.runtime.options import RuntimeOptions
from millstream.runtime.tasks import Tasks
from millstream.runtime.turns.activation import Activation
from millstream.runtime.turns.call_counts import CallCounts
from millstream.runtime.turns.run import Turns
from millstream.runtime.wire.connection import LocalEnd
from millstream.runtime.wire.handshake import Identity
from millstream.runtime.wire.outbox import Outbox
from millstream.runtime.wire.peers import Peers
from millstream.runtime.wire.secret import NO_SECRETS, Secrets
from millstream.runtime.wire.transport import Transport

from .callee import Callee
from .caller import Caller
from .locator import Locator
from .references import Gateway, References, modules_of
from .remote import Remote
from .result_reader import ResultReader
from .stubs import StubBuilder

__all__ = ["CallEngine"]


class CallEngine:
    """The calls of one silo or client.

    Args:
        grains: the classes that this process hosts.
        has_left: returns True for a silo that is known to be stopping; no connection to it is
            opened.
        lost: called with each name whose connection has closed.
        part: returns the silo's part with a name. Raises ConfigError if there is none.
        secrets: the secrets of the cluster and of its operators that this process knows.
        brought: see `References`.
        filters: run around the calls of this process.
        counts: counts these calls. None: nobody does.
    """

    callee: Callee
    caller: Caller
    stubs: StubBuilder

    def __init__(
        self,
        identity: Identity,
        grains: Sequence[type[Contract]],
        options: RuntimeOptions,
        env: Env,
        transport: Transport,
        has_left: Callable[[str], bool],
        lost: Callable[[str], None],
        part: Callable[[str], Any],
        secrets: Secrets = NO_SECRETS,
        brought: Collection[type[Contract]] = (),
        filters: CallFilters = NO_FILTERS,
        counts: CallCounts | None = None,
    ) -> None:
        self.filters = filters
        self.loop = asyncio.get_running_loop()
        self.address = identity.address
        self._env = env
        self.tasks = self.new_tasks()
        self._shielded = self.new_tasks()
        known_errors = KnownErrors(modules_of(grains))
        self.turns = Turns(self.loop, options, known_errors, env.new_id)
        self.turns.counts = counts
        self.outbox = Outbox(self.loop)
        self.end = LocalEnd(identity, options, self.loop, self.tasks, self.outbox, env, secrets)
        self.peers = Peers(self.end, transport, self.new_tasks(), has_left, lost)
        self.references = References(
            self.address,
            grains,
            known_errors,
            options.waiting_calls_max,
            self.turns.waiting_bytes,
            self.turns.check_running,
            part,
            brought,
            filters.incoming,
        )
        self.remote = Remote(self.turns, self.references)

    def new_tasks(self) -> Tasks:
        """Create tasks and timers for one owner, which ends them. Their errors are logged."""
        return Tasks(self.loop, self._env.new_context, self.address)

    def open(
        self,
        locator: Locator,
        activations: Callable[[str], Mapping[str, Activation]],
        gateway: Gateway | None,
    ) -> None:
        """Make grains callable.

        Args:
            activations: returns the activations of a kind in this process, by key.
            gateway: reaches the cluster from outside; None in a silo.
        """
        turns, references = self.turns, self.references
        self.callee = Callee(
            self.address, turns, self.new_tasks(), self.outbox, locator, references
        )
        outgoing = self.filters.outgoing
        self.caller = Caller(
            turns,
            self.remote,
            locator,
            self.callee,
            self._shielded,
            self._env.new_context,
            outgoing,
            bool(outgoing) or any(kind.outgoing for kind in references.kinds.values()),
        )
        self.stubs = StubBuilder(
            turns,
            self.caller,
            locator,
            activations,
            references.build_optioned,
            ResultReader(turns, self.caller, self.tasks),
        )
        references.open(self.stubs.build, gateway)

    async def aclose(self, reason: str) -> None:
        """End everything that is pending, and every connection. Later callers get `reason`."""
        self.turns.ended = reason
        await self.tasks.aclose()
        await self._shielded.aclose()
        await self.callee.aclose()
        await self.peers.aclose()
        self.turns.close()
