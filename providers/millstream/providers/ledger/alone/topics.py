"""The topics of one program.

Owns: `open_topics`, `LedgerTopics`. Invariants: at most one object is open for a topic. Each
opening has a higher epoch than all before it, so a former owner that still lives is fenced.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

from millstream.providers.ledger.bookie.options import BookieOptions
from millstream.providers.ledger.protocol.quorum import Quorum, check_quorum
from millstream.providers.ledger.recovery.options import RecoveryOptions
from millstream.providers.ledger.scrubbing.options import ScrubOptions
from millstream.providers.ledger.serving.home import Home
from millstream.providers.ledger.topic.options import LedgerTopicOptions, LedgerTopicSettings
from millstream.providers.ledger.topic.topic import Topic
from millstream.providers.ledger.topic.topics import check_name
from millstream.runtime import (
    ConfigError,
    Env,
    QueueFenced,
    QueueUnavailable,
    StateStore,
    StorageError,
)
from millstream.runtime.extending import Backoff, Disk, RealDisk, check_kind, load_plugin, show_text

from .own import OwnLedgers
from .record import ManagedRecord
from .topic import LedgerTopic

__all__ = ["PARTITIONS_MAX", "LedgerTopics", "open_topics"]

T = TypeVar("T")

log = logging.getLogger("millstream.ledger")

BETWEEN_OPENS = Backoff(first_s=5.0, ceiling_s=60.0)
"""How long a partition that could not be opened waits for its next attempt."""
PARTITIONS_MAX = 1_000
"""The largest number of partitions of a topic."""


@asynccontextmanager
async def open_topics(
    directory: str | Path,
    *more: str | Path,
    store: StateStore | None = None,
    scope: str = "topics",
    options: LedgerTopicOptions | None = None,
    bookie: BookieOptions | None = None,
    scrub: ScrubOptions | None = None,
    open_wait_s: float = 0.0,
    env: Env | None = None,
    disk: Disk | None = None,
) -> AsyncIterator[LedgerTopics]:
    """Open durable topics in a directory, without a silo, for the length of a block.

    One process at a time has the directory. When that process ends, another one may open it. All
    topics are closed in order at the end of the block. See `LedgerTopics` for an example.

    Args:
        directory: the directory, made if it is missing, with the folders `bookie` and `rows`.
        more: further directories, on other disks, for replicas. They require a `store`.
        store: the state store for the rows, which stays open; None: SQLite in `directory`.
        scope: tells these topics from others in the same store.
        options: limits, retention and times of each topic that is opened without its own.
        bookie: how each directory is written.
        scrub: how each directory is searched for damage.
        open_wait_s: how long to wait for a directory that another process has, in seconds.
        env: the source of time and chance, for simulations.
        disk: the file system, for simulations.

    Yields:
        The topics, for use inside of the block and on its event loop.

    Raises:
        ConfigError: an argument is wrong, or a directory is refused (see the text).
        QueueUnavailable: another process has the directory. Nothing is stored; try again later.
        StorageError: a disk fails, or rows cannot be read. Try again.
    """
    paths = [absolute(one) for one in (directory, *more)]
    if len(set(paths)) < len(paths):
        raise ConfigError(f"open_topics: a directory is named twice: {', '.join(paths)}")
    if store is None and more:
        raise ConfigError(
            f"open_topics: {len(paths)} directories, but no store: rows in one of the directories "
            "would be lost with its disk; give store=, on a disk that is as safe as the replicas"
        )
    check_opening(store, open_wait_s)
    check_kind("open_topics(options)", options or LedgerTopicOptions(), LedgerTopicOptions)
    check_kind("open_topics(bookie)", bookie or BookieOptions(), BookieOptions)
    check_kind("open_topics(scrub)", scrub or ScrubOptions(), ScrubOptions)
    disk = disk or RealDisk()
    async with store_of(store, paths[0], disk) as rows:
        homes = [home_in(path, len(paths)) for path in paths]
        recovery = RecoveryOptions() if more else None
        home = OwnLedgers(
            homes,
            rows,
            scope,
            bookie or BookieOptions(),
            env or Env(),
            disk,
            recovery=recovery,
            scrub=scrub,
        )
        topics = LedgerTopics(home, options or LedgerTopicOptions())
        try:
            await home.start(open_wait_s, usual(len(paths)))
            yield topics
        finally:
            await topics.aclose()


def home_in(path: str, directories: int) -> Home:
    """Return the home of a bookie: the only directory, or one of several that hold replicas."""
    bookie = f"{path}/bookie"
    return Home(bookie, "{silo}", bookie) if directories > 1 else Home(bookie, bookie)


def check_opening(store: object, open_wait_s: object) -> None:
    """Raise ConfigError for a value that is not a store, or not a time to wait."""
    if store is not None and not callable(getattr(store, "scan", None)):
        text = f"open_topics(store) is {show_text(repr(store))}; it must be a StateStore"
        raise ConfigError(f"{text}, such as SqliteStateStore(directory)")
    if not isinstance(open_wait_s, int | float) or not open_wait_s >= 0:
        text = f"open_topics(open_wait_s) is {show_text(repr(open_wait_s))}"
        raise ConfigError(f"{text}; it must be a number >= 0, in seconds")


def absolute(directory: object) -> str:
    """Return the absolute path, so that a later change of the working directory does no harm.

    Raises ConfigError if the argument is not a path.
    """
    is_path = isinstance(directory, str | Path) and str(directory) and "\0" not in str(directory)
    if not is_path:
        raise ConfigError(
            f"open_topics: {show_text(repr(directory))} is not the path of a directory"
        )
    return str(Path(str(directory)).resolve())


@asynccontextmanager
async def store_of(store: StateStore | None, path: str, disk: Disk) -> AsyncIterator[StateStore]:
    """Yield the given store, or a new one in the directory, which is closed at the end."""
    if store is not None:
        yield store
        return
    try:
        disk.make_dir(path)
    except OSError as error:
        text = f"open_topics: cannot create directory {show_text(path)}: {error.strerror}"
        raise ConfigError(f"{text}; give another path") from error
    made = load_plugin("millstream.stores", f"sqlite:{path}/rows")
    try:
        yield made
    finally:
        await made.aclose()


class LedgerTopics:
    """The topics of one program, by name. Made by `open_topics`; use it on the same event loop.

    ```python
    async with open_topics("data/events") as topics:
        orders = await topics.topic("orders", partitions=4)
        await orders.produce("customer-1", b"created")
        billing = await orders.subscribe("billing")
        async for batch in billing:
            for message in batch:
                print(message.key, message.value)
            billing.acknowledge_upto(batch[-1])
    ```

    Several directories, on several disks, store replicas of each message (see `topic`). They
    require a state store, since rows in one of the directories would be lost with it. A directory
    that fails or is refused is left out, as long as the others suffice for all stored and future
    messages of all topics. It is used again as soon as it can be opened.
    """

    def __init__(self, home: OwnLedgers, options: LedgerTopicOptions) -> None:
        self._home = home
        self._options = options
        self._topics: dict[str, LedgerTopic] = {}
        self._changing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._is_closed = False
        self._ending: asyncio.Future[None] | None = None

    async def topic(
        self,
        name: str,
        partitions: int | None = None,
        ensemble: int | None = None,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        *,
        ledger_bytes_max: int | None = None,
        ledger_entries_max: int | None = None,
        ledger_age_s: float | None = None,
        options: LedgerTopicOptions | None = None,
    ) -> LedgerTopic:
        """Open a topic; make it if it does not exist. An open topic is returned again.

        Arguments that are None keep the stored value. A changed setting applies from the next
        ledger of each partition on. The number of partitions never changes.

        Partitions that cannot be opened are left out, as long as at least one can be opened (see
        `LedgerTopic.unavailable`).

        Args:
            name: the name of the topic, 1 to 200 characters together with `/` and the partition.
            partitions: 1 to 1,000. Messages with one key are in one partition, in order. A new
                topic has 1 by default.
            ensemble: the number of directories that a ledger is spread over. A new topic has up to
                3 by default.
            write_quorum: the number of directories that store each message. Default of a new topic:
                as `ensemble`, at most 3.
            ack_quorum: the number of directories that have a message on disk when `produce`
                returns. Default of a new topic: 2, or 1 if there is only one replica.
            ledger_bytes_max: see `LedgerTopicSettings`.
            ledger_entries_max: see `LedgerTopicSettings`.
            ledger_age_s: see `LedgerTopicSettings`, in seconds.
            options: limits, retention and times of this topic while it is open; None: those of
                `open_topics`.

        Returns:
            The open topic.

        Raises:
            ConfigError: the quorum or the length of the name is impossible, the topic has another
                number of partitions, or it is open with other options.
            TypeError: the name is not a text.
            QueueFenced: another process opened the topic at the same time. Open it again, or stop.
            Corrupt: a row is damaged, or older than it was before.
            QueueUnavailable: no partition can be opened now, or the topics are closed.
            StorageError: rows cannot be read or written. Try again.
        """
        self._refuse_closed()
        check_partitions(name, partitions)
        async with self._changing[name]:
            record, stored = await self._read_stored(name)
            refuse_other(name, "partitions", partitions, record and record.partitions)
            kept = stored.quorum or usual(self._home.bookies)
            quorum = quorum_of(kept, ensemble, write_quorum, ack_quorum)
            self._check(name, quorum)
            settings = LedgerTopicSettings(
                quorum=quorum,
                ledger_bytes_max=choose_said(ledger_bytes_max, stored.ledger_bytes_max),
                ledger_entries_max=choose_said(ledger_entries_max, stored.ledger_entries_max),
                ledger_age_s=choose_said(ledger_age_s, stored.ledger_age_s),
            )
            found = self._topics.get(name)
            if found is None or found.is_closed:
                found = await self._open(name, partitions or 1, settings, options)
            refuse_other(name, "options", options, found.options)
            await found.change(settings)
            return found

    async def _read_stored(self, name: str) -> tuple[ManagedRecord | None, LedgerTopicSettings]:
        """Return the stored record of a topic, and its settings."""
        record = await self._home.managed.read(name)
        part = record and await self._home.topics.find(record.names()[0])
        return record, part.settings if part else LedgerTopicSettings()

    def _check(self, name: str, quorum: Quorum) -> None:
        check_quorum(quorum)
        if quorum.ensemble > self._home.bookies:
            text = f"topic {show_text(name)}: ensemble={quorum.ensemble}, "
            text += f"write_quorum={quorum.write}, ack_quorum={quorum.ack}: the ensemble needs "
            text += f"{quorum.ensemble} directories, but open_topics has {self._home.bookies}"
            raise ConfigError(f"{text}: give open_topics more directories, on other disks")

    async def _open(
        self,
        name: str,
        partitions: int,
        settings: LedgerTopicSettings,
        options: LedgerTopicOptions | None,
    ) -> LedgerTopic:
        """Take over all partitions."""
        home, chosen = self._home, options or self._options
        record = await home.managed.update(
            name, lambda found: found or ManagedRecord(name, partitions, home.clock.wall_s())
        )
        taking = [self._take(one, settings, chosen) for one in record.names()]
        opened = await asyncio.gather(*taking, return_exceptions=True)
        parts = {at: one for at, one in enumerate(opened) if isinstance(one, Topic)}
        failed = {at: one for at, one in enumerate(opened) if isinstance(one, BaseException)}
        made = LedgerTopic(name, record.partitions, parts, chosen)
        fatal = [one for one in failed.values() if not isinstance(one, QueueUnavailable)]
        if fatal or self._is_closed:
            await made.aclose()
            raise [*fatal, *failed.values(), make_closed_error()][0]
        for at, error in failed.items():
            assert isinstance(error, QueueUnavailable)
            made.lack(at, error)
        made.refuse_unopened()
        for at, error in made.unavailable.items():
            log.error(
                "%r: could not open partition %d, retrying; open partitions work: %s",
                made,
                at,
                error,
            )
        if failed:
            home.context.tasks.start(self._open_rest(made, record.names(), chosen))
        self._topics[name] = made
        return made

    async def _open_rest(
        self, topic: LedgerTopic, names: Sequence[str], options: LedgerTopicOptions
    ) -> None:
        """Open the partitions that could not be opened before; try again until all are open."""
        for attempt in count(1):
            await asyncio.sleep(BETWEEN_OPENS.delay_s(attempt, 0.5))
            for at in topic.unavailable:
                if topic.is_closed:
                    return
                try:
                    await self._open_one(topic, at, names[at], options)
                except QueueFenced as error:
                    log.error("%r: partition %d stays closed: %s", topic, at, error)
                    return
                except (QueueUnavailable, StorageError) as error:
                    topic.lack(at, error)
            if not topic.unavailable:
                return

    async def _open_one(
        self, topic: LedgerTopic, partition: int, name: str, options: LedgerTopicOptions
    ) -> None:
        part = await self._take(name, topic.settings, options)
        try:
            if topic.is_closed:
                raise make_closed_error()
            await topic.join(partition, part)
        except BaseException:
            await part.aclose()
            raise
        log.info("%r: partition %d is open again", topic, partition)

    async def _take(
        self, part: str, settings: LedgerTopicSettings, options: LedgerTopicOptions
    ) -> Topic:
        topics = self._home.topics
        return await topics.open(part, await topics.last_epoch(part) + 1, options, settings)

    async def names(self) -> list[str]:
        """Return the names of all topics, including those with damaged rows.

        Returns:
            The names, sorted.

        Raises:
            QueueUnavailable: the topics are closed.
            StorageError: rows cannot be read. Try again.
        """
        self._refuse_closed()
        scan = self._home.managed.scan()
        whole = [record.topic async for record in scan]
        return sorted([*whole, *map(unquote, scan.damaged)])

    async def delete(self, name: str) -> None:
        """Delete a topic with all of its messages and subscriptions. It does no harm to delete it
        twice.

        Args:
            name: the name of the topic. A topic that does not exist is ignored.

        Raises:
            QueueUnavailable: the topics are closed.
            StorageError: the deletion may be incomplete. Delete the topic again.
        """
        self._refuse_closed()
        async with self._changing[name]:
            found = self._topics.pop(name, None)
            if found is not None:
                await found.aclose()
            record = await self._home.managed.read(name)
            if record is None:
                await self._home.managed.end_deletion(name)
                return
            for part in record.names():
                await self._home.topics.delete(part)
            await self._home.managed.delete(name)

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise make_closed_error()

    async def aclose(self) -> None:
        """Close all topics, then release the directories. It does no harm to close twice.

        `open_topics` calls it at the end of its block. If the caller is cancelled, the closing
        still completes before the cancellation is raised, so that no directory stays locked.
        """
        if self._ending is None:
            self._is_closed = True
            self._ending = asyncio.ensure_future(self._end())
        try:
            await asyncio.shield(self._ending)
        except asyncio.CancelledError:
            await asyncio.wait([self._ending])
            raise

    async def _end(self) -> None:
        await asyncio.gather(*(topic.aclose() for topic in self._topics.values()))
        await self._home.aclose()


def make_closed_error() -> QueueUnavailable:
    """Return the error of a call after the end."""
    return QueueUnavailable("these topics are closed: call open_topics again")


def usual(directories: int) -> Quorum:
    """Return the quorum of a topic without one: replicas in up to three directories."""
    copies = min(directories, 3)
    return Quorum(copies, copies, min(copies, 2))


def choose_said(given: T | None, stored: T) -> T:
    """Return the given value, or else the stored one."""
    return stored if given is None else given


def quorum_of(kept: Quorum, ensemble: int | None, write: int | None, ack: int | None) -> Quorum:
    """Return the given quorum. Missing parts are the stored ones, or else the usual ones of its
    size."""
    given = [one for one in (ensemble, write, ack) if one is not None]
    if not all(type(one) is int for one in given):
        text = f"ensemble={ensemble!r}, write_quorum={write!r}, ack_quorum={ack!r}"
        raise ConfigError(f"{show_text(text)}: each must be a whole number")
    ensemble = choose_said(ensemble, kept.ensemble)
    if write is None:
        write = kept.write if ensemble == kept.ensemble else min(ensemble, 3)
    if ack is None:
        ack = kept.ack if write == kept.write else min(write, 2)
    return Quorum(ensemble, write, ack)


def check_partitions(name: str, partitions: int | None) -> None:
    """Raise ConfigError or TypeError for a wrong name or number of partitions."""
    check_name(name)
    is_whole = type(partitions) is int  # a row with 2.0 could not be read
    if partitions is not None and not (is_whole and 1 <= partitions <= PARTITIONS_MAX):
        text = f"topic {show_text(name)}: partitions is {show_text(repr(partitions))}"
        raise ConfigError(f"{text}; it must be 1 to {PARTITIONS_MAX}")
    check_name(f"{name}/{(partitions or 1) - 1}")


def refuse_other(name: str, what: str, given: object, known: object) -> None:
    """Raise ConfigError if the given value differs from the known value. `what` names the value."""
    if given is not None and known is not None and given != known:
        values = f"{show_text(repr(given))}, and {show_text(repr(known))}"
        raise ConfigError(
            f"topic {show_text(name)}: {what} is {values} so far, and cannot change: omit {what}"
        )
