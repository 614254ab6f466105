"""The connections of one table or store to its database.

This module owns `Connections`. `failures` judges errors, and `database` knows the schema.

Invariants:

- A connection has at most one user, and is used again only if it is idle and in order.
- An unused connection over which the server has said anything, such as a goodbye, is not used
  again. So a restart of the server costs no statement that begins after it.
- A statement that was sent runs to its end even if its caller is cancelled. So no connection is
  left in the middle of a statement. It ends within `timeout_s`: then the connection is cut.
- After a connection was cut, all unused ones are closed: the server may be gone silently.
- A process that was forked uses no connection of its parent.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from millstream.runtime.env import Env
from millstream.runtime.tasks import Tasks

from .failures import DatabaseTrouble, judge_answer, judge_refusal
from .options import PostgresOptions

__all__ = ["Connections", "DatabaseFailure", "Session"]

T = TypeVar("T")
Session = psycopg.AsyncConnection[Any]
CLOSED = DatabaseTrouble("is closed: make another one")
FORKED = DatabaseTrouble("was made before this process was forked: make another one in it")
FULL_RETRY_S = 0.1
"""The longest pause before a server that had no free connection is asked again."""
NOTICE_S = (15, 5, 3, 30_000)
"""How the server notices that a host is gone: it asks after 15 s of silence, each 5 s, three times,
and waits at most 30 s for the confirmation of what it has sent. So a session ends after 35 s.

Otherwise sessions of a host that was cut off keep connections of the server for hours.
"""
NOTICE = (
    "SELECT set_config('tcp_keepalives_idle', %s, false),"
    " set_config('tcp_keepalives_interval', %s, false),"
    " set_config('tcp_keepalives_count', %s, false), set_config('tcp_user_timeout', %s, false)"
)
OTHER_LOOP = DatabaseTrouble("is in use in another event loop: make one for each loop")


class DatabaseFailure(Exception):
    """A statement or a connection failed, as its `trouble` says."""

    def __init__(self, trouble: DatabaseTrouble, detail: object = "") -> None:
        super().__init__(trouble, detail)
        self.trouble = trouble
        self.detail = " ".join(str(detail).split())


class Used:
    """One connection.

    Attributes:
        session: The connection of the driver.
        born_s, idle_s: The times of the loop when it was made and returned.
        is_cut: Whether it was cut because its server was silent.
    """

    __slots__ = ("born_s", "idle_s", "is_cut", "session")

    def __init__(self, session: Session, now_s: float) -> None:
        self.session = session
        self.born_s = self.idle_s = now_s
        self.is_cut = False

    def is_in_order(self) -> bool:
        """Return whether the server waits for a statement, and has said nothing."""
        session = self.session
        if session.closed or session.pgconn.transaction_status != TransactionStatus.IDLE:
            return False
        poll = select.poll()
        poll.register(session.fileno(), select.POLLIN)
        return not poll.poll(0)

    def cut(self) -> None:
        """End the connection at once, so that whatever waits for its server fails."""
        self.is_cut = True
        with suppress(OSError, psycopg.Error):
            end = socket.socket(fileno=os.dup(self.session.fileno()))
            with end:
                end.shutdown(socket.SHUT_RDWR)


def retrieve_error(task: asyncio.Task[Any]) -> None:
    """Mark the error of a task as retrieved, because its caller may be gone."""
    if not task.cancelled():
        task.exception()


class Connections:
    """The connections to one database, made when they are needed.

    Args:
        url: the URL for the driver.
        options: limits.
        env: makes the contexts of tasks.
        greet: called with each new connection before its first use. Raises DatabaseFailure.
    """

    def __init__(
        self,
        url: str,
        options: PostgresOptions,
        env: Env,
        greet: Callable[[Session], Awaitable[None]],
    ) -> None:
        self._url = url
        self._options = options
        self._env = env
        self._greet = greet
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: list[Used] = []  # the one that was used last is last
        self.is_closed = False

    async def run(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """Run `work` with a connection, to its end even if the caller is cancelled.

        Raises DatabaseFailure, and the errors of `work` that are not the driver's.
        """
        self._check()
        task = self._tasks.start(self._run(work))
        task.add_done_callback(retrieve_error)
        await asyncio.wait([task])
        if task.cancelled():
            raise DatabaseFailure(CLOSED._replace(may_be_done=True))
        result: T = task.result()
        return result

    async def aclose(self) -> None:
        """Wait for the statements that run, then close all connections."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._loop is asyncio.get_running_loop() and os.getpid() == self._pid:
            while running := list(self._tasks):
                await asyncio.wait(running)
            await self._drop_idle()

    def _check(self) -> None:
        """Raise DatabaseFailure if no statement may start."""
        if self.is_closed:
            raise DatabaseFailure(CLOSED)
        if os.getpid() != self._pid:
            raise DatabaseFailure(FORKED)
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._begin(loop)
        if len(self._tasks) >= self._options.pending_max:
            raise DatabaseFailure(
                DatabaseTrouble(f"has too many statements: pending_max is {len(self._tasks)}")
            )

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start in a loop. Connections of an earlier loop, which has ended, are not used."""
        if self._loop is not None and not self._loop.is_closed():
            raise DatabaseFailure(OTHER_LOOP)
        for used in self._idle:
            used.session.pgconn.finish()
        self._idle.clear()
        self._loop = loop
        self._tasks = Tasks(loop, self._env.new_context)
        self._room = asyncio.Semaphore(self._options.connections_max)

    async def _run(self, work: Callable[[Session], Awaitable[T]]) -> T:
        await self._wait_for_room()
        try:
            used = await self._take()
            return await self._use(used, work)
        finally:
            self._room.release()

    async def _wait_for_room(self) -> None:
        limit_s = self._options.timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self._room.acquire()
        except TimeoutError:
            most = self._options.connections_max
            text = f"had no connection free within {limit_s:g} s (timeout_s): connections_max is"
            raise DatabaseFailure(DatabaseTrouble(f"{text} {most}")) from None

    async def _take(self) -> Used:
        """Return a connection. While the server has no free one, wait for one for `timeout_s`."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._options.timeout_s
        while True:
            used = await self._find_idle(loop.time())
            if used is not None:
                return used
            try:
                return await self._connect()
            except DatabaseFailure as error:
                if not error.trouble.is_full or loop.time() >= end_s:
                    raise
            await asyncio.sleep(self._env.uniform(FULL_RETRY_S / 2, FULL_RETRY_S))

    async def _find_idle(self, now_s: float) -> Used | None:
        while self._idle:
            used = self._idle.pop()
            if now_s - used.born_s < self._options.life_s and used.is_in_order():
                return used
            await used.session.close()
        return None

    async def _connect(self) -> Used:
        limit_s = self._options.connect_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                session = await psycopg.AsyncConnection.connect(
                    self._url,
                    autocommit=True,
                    connect_timeout=max(2, int(limit_s)),
                    target_session_attrs="read-write",
                    application_name="millstream",
                )
        except TimeoutError:
            text = f"did not answer within {limit_s:g} s (connect_timeout_s): start the server, or"
            raise DatabaseFailure(DatabaseTrouble(f"{text} correct the URL")) from None
        except psycopg.Error as error:
            raise DatabaseFailure(judge_refusal(str(error)), error) from error
        used = Used(session, asyncio.get_running_loop().time())
        try:
            await self._use(used, self._begin_session, is_returned=False)
        except DatabaseFailure as error:  # nothing of the caller was sent
            await session.close()
            raise DatabaseFailure(
                error.trouble._replace(may_be_done=False), error.detail
            ) from error
        return used

    async def _begin_session(self, session: Session) -> None:
        await session.execute(NOTICE, [str(number) for number in NOTICE_S])
        await self._greet(session)

    async def _use(
        self, used: Used, work: Callable[[Session], Awaitable[T]], *, is_returned: bool = True
    ) -> T:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._options.timeout_s, used.cut)
        try:
            return await work(used.session)
        except psycopg.Error as error:
            raise DatabaseFailure(self._judge(used, error), error) from error
        finally:
            timer.cancel()
            if used.is_cut:
                await self._drop_idle()
            if is_returned:
                await self._give_back(used)

    def _judge(self, used: Used, error: psycopg.Error) -> DatabaseTrouble:
        if used.is_cut:
            limit_s = self._options.timeout_s
            return DatabaseTrouble(
                f"did not answer within {limit_s:g} s (timeout_s)", may_be_done=True
            )
        return judge_answer(error.sqlstate, error.diag.severity_nonlocalized)

    async def _give_back(self, used: Used) -> None:
        now_s = asyncio.get_running_loop().time()
        if self.is_closed or used.is_cut or not used.is_in_order():
            await used.session.close()
        else:
            used.idle_s = now_s
            self._idle.append(used)
        while self._idle and now_s - self._idle[0].idle_s > self._options.idle_s:
            await self._idle.pop(0).session.close()

    async def _drop_idle(self) -> None:
        while self._idle:
            await self._idle.pop().session.close()
