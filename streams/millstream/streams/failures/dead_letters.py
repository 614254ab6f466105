"""Dead letters, as silos, clients and grains see them: listed, shown, deleted, redriven.

Owns: `DeadLetters`, and how one is opened. Not: what answers (`target`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, Protocol

from millstream.runtime.extending import Gateway, Opener, Program
from millstream.streams.contracts.identity import StreamId

from .letters import DeadLetter
from .target import DeadLettersTarget

__all__ = ["DeadLetters", "dead_letters"]

LIST_MANY = 100


class LetterCalls(Protocol):
    """What answers: the target of this silo, or of a gateway."""

    def page(
        self, subscription: str, stream: StreamId | None, after: str, limit: int, /
    ) -> Coroutine[Any, Any, Sequence[DeadLetter]]: ...
    def list_damaged(
        self, subscription: str, stream: StreamId | None, after: str, limit: int, /
    ) -> Coroutine[Any, Any, Sequence[str]]: ...
    def get(self, letter_id: str, /) -> Coroutine[Any, Any, DeadLetter]: ...
    def delete(self, letter_id: str, /) -> Coroutine[Any, Any, bool]: ...
    def redrive(self, letter_id: str, /) -> Coroutine[Any, Any, None]: ...


class DeadLetters:
    """The dead letters of one stream provider: `dead_letters(cluster)`.

    Every method raises StorageUnavailable, too, and in a client what calls raise.
    """

    def __init__(self, calls: LetterCalls) -> None:
        self._calls = calls

    async def list(
        self,
        subscription: str = "",
        *,
        stream: StreamId | None = None,
        after: str = "",
        limit: int = 100,
    ) -> Sequence[DeadLetter]:
        """Letters in the order of their ids: by subscription, stream and token.

        Args:
            subscription: of this one only; "": of all.
            stream: of this stream of the subscription only.
            after: the id behind which the list begins; the last one of a list gives the next.
            limit: letters at most, 1 to 1,000. A list has at most 1 MiB, or one letter: it may be
                shorter than the limit; only an empty one is the end.

        Letters whose rows are damaged are in no list: `list_damaged` gives their ids. Raises
        ValueError.
        """
        return await self._calls.page(subscription, stream, after, limit)

    async def list_damaged(
        self,
        subscription: str = "",
        *,
        stream: StreamId | None = None,
        after: str = "",
        limit: int = 100,
    ) -> Sequence[str]:
        """Ids of letters whose rows are damaged; arguments and errors as those of `list`.

        `get` of such an id raises Corrupt, which says what is wrong; `delete` forgets the letter.
        Costs a read of all letters, until there are so many.
        """
        return await self._calls.list_damaged(subscription, stream, after, limit)

    async def all(
        self, subscription: str = "", *, stream: StreamId | None = None
    ) -> AsyncIterator[DeadLetter]:
        """Every letter, asked for list by list: `async for letter in letters.all()`."""
        after = ""
        while found := await self.list(subscription, stream=stream, after=after, limit=LIST_MANY):
            for letter in found:
                yield letter
            after = found[-1].id

    async def get(self, letter_id: str, /) -> DeadLetter:
        """One letter, by its id. Raises LookupError, Corrupt (its row is damaged)."""
        return await self._calls.get(letter_id)

    async def delete(self, letter_id: str, /) -> bool:
        """Forget a letter; False: there is none of that id."""
        return await self._calls.delete(letter_id)

    async def redrive(self, letter_id: str, /) -> None:
        """Give the event to the one subscription that failed, and wait until it is done.

        It comes outside of the order, with `event.redriven`, once or more; then the letter is
        forgotten. Raises what the handler raises (the letter stays), LookupError (no such letter),
        StreamError (the subscription has ended), and what calls raise: whether it ran is unknown.
        """
        await self._calls.redrive(letter_id)


class GatewayLetters:
    """The dead letters of a provider, asked for through a gateway."""

    def __init__(self, gateway: Gateway, provider: str) -> None:
        self._gateway = gateway
        self._target = f"{DeadLettersTarget.target_name}/{provider}"

    def page(
        self, subscription: str, stream: StreamId | None, after: str, limit: int, /
    ) -> Coroutine[Any, Any, Sequence[DeadLetter]]:
        method = DeadLettersTarget.page
        return self._gateway.call("", self._target, method, subscription, stream, after, limit)

    def list_damaged(
        self, subscription: str, stream: StreamId | None, after: str, limit: int, /
    ) -> Coroutine[Any, Any, Sequence[str]]:
        method = DeadLettersTarget.list_damaged
        return self._gateway.call("", self._target, method, subscription, stream, after, limit)

    def get(self, letter_id: str, /) -> Coroutine[Any, Any, DeadLetter]:
        return self._gateway.call("", self._target, DeadLettersTarget.get, letter_id)

    def delete(self, letter_id: str, /) -> Coroutine[Any, Any, bool]:
        return self._gateway.call("", self._target, DeadLettersTarget.delete, letter_id)

    def redrive(self, letter_id: str, /) -> Coroutine[Any, Any, None]:
        # each of its own name: one handler that takes its time holds no other up
        return self._gateway.call(letter_id, self._target, DeadLettersTarget.redrive, letter_id)


class Letters:
    """Opens dead letters as a namespace opens streams; the key is the provider."""

    def open(self, runtime: Opener, key: str, /) -> DeadLetters:
        runtime.check_running()
        if runtime.gateway is None:
            letters: DeadLetters = runtime.part(key).dead_letters
            return letters
        return DeadLetters(GatewayLetters(runtime.gateway, key))


def dead_letters(program: Program, provider: str = "default", /) -> DeadLetters:
    """The dead letters of a stream provider.

    Args:
        program: a `Silo`, `Client`, `LocalCluster`, or a grain.
        provider: the name under which silos were given it.

    Raises ConfigError (in a silo: no such provider), NotInCluster.
    """
    return program.stream(Letters(), provider)
