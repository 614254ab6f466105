"""Dead letters, as silos, clients and grains see them: listed, shown, deleted, redriven.

Owns: `DeadLetters`, and opening it. Not: the answers (`target`).
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
    """Answers the calls: the target of this silo, or of a gateway."""

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
    """The dead letters of one stream provider; `dead_letters(program)` returns it.

    Each method also raises `StorageUnavailable`, and in a client the errors of calls.
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
        """Return dead letters in the order of their ids: by subscription, stream and token.

        A list has at most 1 MiB, or one letter. It may therefore be shorter than the limit: only an
        empty list is the end. Letters whose rows are damaged are in no list; `list_damaged` returns
        their ids.

        Args:
            subscription: only letters of this subscription. Empty: of all.
            stream: only letters of this stream; needs `subscription`.
            after: the list begins after this id. Pass the last id of a list to get the next one.
            limit: largest number of letters, 1 to 1,000.

        Raises:
            ValueError: the limit is not valid, or `stream` is given without `subscription`.
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
        """Return the ids of letters whose stored rows are damaged.

        `get` of such an id raises `Corrupt`, which says what is wrong; `delete` forgets the letter.
        The call reads all letters until it has found `limit` damaged ones.

        Args:
            subscription: as for `list`.
            stream: as for `list`.
            after: as for `list`.
            limit: as for `list`.

        Raises:
            ValueError: as for `list`.
        """
        return await self._calls.list_damaged(subscription, stream, after, limit)

    async def all(
        self, subscription: str = "", *, stream: StreamId | None = None
    ) -> AsyncIterator[DeadLetter]:
        """Iterate over every letter: `async for letter in letters.all()`. Lists are read one by
        one.

        Args:
            subscription: as for `list`.
            stream: as for `list`.

        Yields:
            The letters, in the order of their ids.
        """
        after = ""
        while found := await self.list(subscription, stream=stream, after=after, limit=LIST_MANY):
            for letter in found:
                yield letter
            after = found[-1].id

    async def get(self, letter_id: str, /) -> DeadLetter:
        """Return one letter.

        Args:
            letter_id: the id.

        Raises:
            LookupError: there is no such letter.
            Corrupt: its row is damaged.
        """
        return await self._calls.get(letter_id)

    async def delete(self, letter_id: str, /) -> bool:
        """Forget a letter, even a damaged one.

        Args:
            letter_id: the id.

        Returns:
            Whether there was such a letter.
        """
        return await self._calls.delete(letter_id)

    async def redrive(self, letter_id: str, /) -> None:
        """Deliver the event again to the one subscription that failed, and wait for its handler.

        The event is delivered at least once, outside of the order, with `event.redriven`. When the
        handler has finished, the letter is deleted. If a call fails, it is unknown whether the
        handler has run.

        Args:
            letter_id: the id.

        Raises:
            LookupError: there is no such letter.
            StreamError: the subscription has ended.
            Exception: the error of the handler; the letter stays.
        """
        await self._calls.redrive(letter_id)


class GatewayLetters:
    """The dead letters of a provider, through a gateway."""

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
        # one name for each letter: a slow handler does not delay other redrives
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
    """Return the dead letters of a stream provider.

    Args:
        program: a `Silo`, `Client`, `LocalCluster`, or a grain.
        provider: the name under which silos were given the provider.

    Raises:
        ConfigError: the silo has no such provider.
        NotInCluster: the silo or client has ended.
    """
    return program.stream(Letters(), provider)
