"""One Redis server, as a store uses it.

Owns `Server`: connections, time limits, scripts that the server forgot, and the meaning of errors.

Invariants:

- A request is sent once. A script whose answer is lost may have run.
- Each request ends within `timeout_s`, whether or not the server answers.
- A connection carries no request before the server's settings were checked over it.
- The settings are checked every `check_period_s`. While they are too weak, no request is sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from redis import exceptions
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from millstream.runtime import ConfigError, StorageUnavailable

from .demands import SETTINGS, UnfitServer, fields_of, objection
from .options import RedisOptions
from .rows import Value
from .scripts import Script

__all__ = ["Server", "check_address", "show_address"]

log = logging.getLogger("millstream.priority")

WHY: tuple[tuple[type[BaseException], str], ...] = (
    (exceptions.AuthenticationError, "refuses the username or password"),
    (exceptions.BusyLoadingError, "is reading its data after a start: try again later"),
    (exceptions.OutOfMemoryError, "has no memory left: raise maxmemory"),
    (exceptions.ReadOnlyError, "is a replica now: give the address of the master"),
    (exceptions.MovedError, "is part of a Redis Cluster, which is not supported"),
    (exceptions.NoPermissionError, "does not give its user the required permissions"),
    (exceptions.ResponseError, "refused the request"),
    (exceptions.RedisError, "cannot be reached"),
    (OSError, "cannot be reached"),
)
"""Explanations of errors; the first matching class applies."""


def check_address(address: str) -> dict[str, Any]:
    """The parts of an address `redis://host:port/db`, `rediss://` or `unix://`.

    Raises ConfigError, which does not show the password.
    """
    try:
        parsed: dict[str, Any] = dict(parse_url(address))
    except ValueError as error:
        form = "redis://host:port/db, rediss://host:port/db or unix:///path?db=0"
        raise ConfigError(f"the address of a Redis server must be {form}: {error}") from None
    known = {"host", "port", "db", "path", "username", "password", "connection_class"}
    if more := parsed.keys() - known:
        raise ConfigError(
            f"the address of a Redis server has {', '.join(sorted(more))}: use RedisOptions"
        )
    return parsed


def show_address(parsed: dict[str, Any]) -> str:
    """The address without the password."""
    where = parsed.get("path") or f"{parsed.get('host', 'localhost')}:{parsed.get('port', 6379)}"
    return f"redis {where}/{parsed.get('db', 0)}"


class Server:
    """The connections to one server.

    Every request may raise StorageUnavailable; the request may then have been carried out.
    """

    def __init__(self, parsed: dict[str, Any], options: RedisOptions) -> None:
        self.place = show_address(parsed)
        self._options = options
        arguments = parsed | {
            "max_connections": options.connections_max,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": None,
            "socket_connect_timeout": options.connect_timeout_s,
            "redis_connect_func": self._on_connected,
        }
        given = {"username": options.username, "password": options.password}
        arguments |= {name: value for name, value in given.items() if value is not None}
        self._client = Redis.from_pool(ConnectionPool(**arguments))
        self._room = asyncio.Semaphore(options.connections_max)
        self._pid = os.getpid()
        self._unfit = ""

    async def open(self) -> None:
        """Check that the server answers and meets the requirements. Also raises ConfigError."""
        try:
            await self._within(self._client.ping)
        except (UnfitServer, exceptions.AuthenticationError) as error:
            raise ConfigError(self._text(error)) from error
        except (exceptions.RedisError, OSError) as error:
            raise StorageUnavailable(self._text(error)) from error

    async def watch(self) -> None:
        """Check the server's settings again and again, without end.

        While the server does not meet the requirements, requests are refused.
        """
        while True:
            await asyncio.sleep(self._options.check_period_s)
            with suppress(StorageUnavailable):  # requests report the reason
                self._note(await self._objection())

    async def _objection(self) -> str:
        """Why the server no longer meets the requirements; an empty text if it does."""

        command: Any = self._client.execute_command

        async def act() -> str:
            info, settings = await command("INFO"), None
            with suppress(exceptions.ResponseError):  # the command is renamed or not allowed
                settings = await command("CONFIG GET", *SETTINGS)
            told = {field: str(value) for field, value in info.items()}
            return objection(told, settings, self._options.durability)

        try:
            return str(await self._within(act))
        except UnfitServer as error:  # a new connection found it
            return str(error)
        except (exceptions.RedisError, OSError) as error:
            raise StorageUnavailable(self._text(error)) from error

    def _note(self, why: str) -> None:
        if why and not self._unfit:
            log.error("%s %s; operations fail until this is corrected", self.place, why)
        elif self._unfit and not why:
            log.info("%s meets the requirements again", self.place)
        self._unfit = why

    async def run(self, script: Script, keys: Sequence[bytes], args: Sequence[Value]) -> list[Any]:
        """Run a script, and return its answer."""

        async def act() -> Any:
            rest = (len(keys), *keys, *args)
            command: Any = self._client.execute_command
            try:
                return await command("EVALSHA", script.sha, *rest)
            except exceptions.NoScriptError:
                return await command("EVAL", script.text, *rest)

        return await self._ask(act)

    async def ask(self, commands: Sequence[tuple[Value, ...]]) -> list[Any]:
        """Send several reads in one message. Other requests may run between them."""

        async def act() -> list[Any]:
            async with self._client.pipeline(transaction=False) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                return await pipeline.execute()

        return await self._ask(act)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _ask(self, act: Callable[[], Awaitable[Any]]) -> list[Any]:
        if os.getpid() != self._pid:
            raise StorageUnavailable(
                f"{self.place}: this process was forked: open another store in it"
            )
        if self._unfit:
            raise StorageUnavailable(f"{self.place} {self._unfit}")
        try:
            found: list[Any] = await self._within(act)
        except (exceptions.RedisError, OSError) as error:
            raise StorageUnavailable(self._text(error)) from error
        return found

    async def _within(self, act: Callable[[], Awaitable[Any]]) -> Any:
        async with asyncio.timeout(self._options.timeout_s), self._room:
            return await act()

    def _text(self, error: BaseException) -> str:
        if isinstance(error, UnfitServer):
            return f"{self.place} {error}"
        if isinstance(error, TimeoutError | exceptions.TimeoutError):
            given = self._options
            used = f", all connections in use: connections_max is {given.connections_max}"
            waits = used if self._room.locked() else ""
            text = f"did not answer in time (timeout_s is {given.timeout_s}{waits})"
            return f"{self.place} {text}: {error}" if str(error) else f"{self.place} {text}"
        why = next(text for kind, text in WHY if isinstance(error, kind))
        return f"{self.place} {why}: {error}"

    # -- new connections

    async def _on_connected(self, connection: AbstractConnection) -> None:
        try:
            await connection.on_connect()
            await self._check(connection)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise

    async def _check(self, connection: AbstractConnection) -> None:
        await connection.send_command("INFO")
        answer: Any = await connection.read_response()
        info, settings = fields_of(answer), None
        with suppress(exceptions.ResponseError):  # the command is renamed or not allowed
            await connection.send_command("CONFIG", "GET", *SETTINGS)
            answer = await connection.read_response()
            texts = [one.decode() for one in answer]
            settings = dict(zip(texts[::2], texts[1::2], strict=True))
        if why := objection(info, settings, self._options.durability):
            raise UnfitServer(why)
