"""Retention from outside: programs keep unread messages through a silo's `$retain` target.

Owns: the target: its refusals, and the checks of an adapter's answers. Not: keeping (the adapter,
`Retains`), the other side (`outside`). Invariants: repeated, late and reordered calls do no harm.
Retained messages are given up by `let_go`, or by a limit of the provider. One run of a reader
retains at a time. Positions of another incarnation move nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeVar

from millstream.runtime import ConfigError
from millstream.runtime.extending import Role, SystemTarget, check_text, open_to
from millstream.streams.contracts.answers import AdapterFault, fault_of
from millstream.streams.contracts.identity import QueueId
from millstream.streams.contracts.queue import Retains
from millstream.streams.contracts.token import Token

from .adapter_calls import AdapterCalls
from .claims import Holder, ReaderClaims

__all__ = ["READER_CHARS_MAX", "RUN_CHARS_MAX", "RetainTarget"]

READER_CHARS_MAX = 200
"""Length of a reader's name."""
RUN_CHARS_MAX = 400
"""Length of the name of a run."""

T = TypeVar("T")


class RetainTarget(SystemTarget):
    """Keeps messages of one provider for readers outside (`$retain/<provider>`).

    Args:
        calls: the calls of an adapter; without `Retains`, every retention is refused.
        claims: the runs that own names of readers.
    """

    target_name = "$retain"

    def __init__(self, calls: AdapterCalls, claims: ReaderClaims) -> None:
        self._calls = calls
        self._claims = claims

    @open_to(Role.CLIENT)
    async def claim(self, form: int, reader: str, run: str, over: Holder | None) -> Holder:
        """Claim or renew the name of a reader for a run; returns the owner after that.

        `over`: the claim of another run, which is taken over if it has not changed. Raises
        ConfigError as `retain`, StorageError.
        """
        self._check(form, reader, ())
        check_run(run)
        return await self._claims.claim(reader, run, over)

    @open_to(Role.CLIENT)
    async def release(self, form: int, reader: str, run: str) -> None:
        """Release the name of a reader, if this run owns it. Raises as `claim`."""
        self._check(form, reader, ())
        check_run(run)
        await self._claims.release(reader, run)

    @open_to(Role.CLIENT)
    async def retain(
        self,
        form: int,
        incarnation: str,
        reader: str,
        run: str,
        positions: dict[str, Token | None],
    ) -> None:
        """Keep the messages of these queues from these positions on.

        None keeps all messages that are there now.

        Args:
            incarnation: of the provider that assigned the positions; "": this one.
            run: the run of the reader that calls; "": a reader whose runs do not claim it.

        Raises ConfigError (no retention here, or for too many readers; another incarnation; another
        run owns the name), StreamError (it is unknown in which queues messages are kept),
        StorageError.
        """
        adapter = self._check(form, reader, positions)
        await self._calls.check_incarnation(incarnation)
        if run:
            check_run(run)
            await self._claims.check(reader, run)
        await self._each(
            positions, "retain", lambda queue: adapter.retain(queue, reader, positions[queue])
        )

    @open_to(Role.CLIENT)
    async def let_go(self, form: int, reader: str, queues: list[str]) -> None:
        """Keep nothing for a reader, in the queues that are read now and in the named ones.

        Raises as `retain`.
        """
        adapter = self._check(form, reader, queues)
        wanted = list(dict.fromkeys([*self._calls.queues(), *queues]))
        await self._each(wanted, "let_go", lambda queue: adapter.let_go(queue, reader))
        await self._claims.release(reader, None)

    @open_to(Role.CLIENT)
    async def list_retained(self, form: int) -> dict[str, dict[str, Token]]:
        """The readers, and the position from which each queue that is read now is kept for them."""
        adapter = self._check(form, "any", ())
        found: dict[str, dict[str, Token]] = {}
        answers = await self._each(self._calls.queues(), "list_retained", adapter.list_retained)
        for queue, answer in answers.items():
            for reader, position in self._positions(queue, answer).items():
                found.setdefault(reader, {})[queue] = position
        return found

    def _positions(self, queue: QueueId, answer: Any) -> Mapping[str, Token]:
        if isinstance(answer, Mapping) and all(
            isinstance(name, str) and isinstance(token, Token) for name, token in answer.items()
        ):
            return answer
        where = self._calls.where(queue, "list_retained")
        raise AdapterFault(f"{where} returned {answer!r}, not a mapping of names to tokens")

    def _check(self, form: int, reader: str, queues: Collection[str]) -> Retains:
        """The adapter. Raises ConfigError, ValueError."""
        self._calls.check(form, queues)
        adapter = self._calls.adapter
        if not isinstance(adapter, Retains):
            raise ConfigError(
                f"stream provider {self._calls.provider!r} keeps no messages for named readers: "
                "read without a name, or from a provider that keeps them, such as LedgerQueues"
            )
        check_text("the name of a reader", reader)
        if not 1 <= len(reader) <= READER_CHARS_MAX:
            text = f"the name of a reader has {len(reader)} characters"
            raise ConfigError(f"{text}; it must have 1 to {READER_CHARS_MAX}")
        return adapter

    async def _each(
        self, queues: Collection[QueueId], method: str, ask: Callable[[QueueId], Awaitable[T]]
    ) -> dict[QueueId, T]:
        """Make a call for all queues at once. Raises ConfigError, StreamError."""

        async def ask_one(queue: QueueId) -> T:
            where = self._calls.where(queue, method)
            try:
                return await self._calls.in_time(where, lambda: ask(queue))
            except ConfigError:
                raise
            except Exception as error:
                raise fault_of(where, error) from error

        return await self._calls.each(queues, ask_one)


def check_run(run: str) -> None:
    """Raises ConfigError: the name of the run is not valid."""
    check_text("the name of a run", run)
    if not 1 <= len(run) <= RUN_CHARS_MAX:
        raise ConfigError(
            f"the name of a run has {len(run)} characters; it must have 1 to {RUN_CHARS_MAX}"
        )
