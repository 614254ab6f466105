"""The managed topics of one program.

Owns: `open_topics`, `LedgerTopics`. Invariants: of a topic one object is open at a time; whoever
opens it comes in a higher epoch than all before, so that an owner that lives on is fenced.
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
"""How long a partition that could not be opened waits until it is tried again."""
PARTITIONS_MAX = 1_000
"""Partitions of a managed topic."""


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
    """Durable topics in a directory, without a silo: `async with open_topics("data") as topics`.

    One process has the directory at a time; when it ends, however it does, another one may. At the
    end of the block all topics are closed in order.

    Args:
        directory: made if it is missing; messages are in its `bookie`, rows in its `rows`.
        more: directories on other disks: each holds copies, by the quorums of topics.
        store: has the rows, instead of SQLite in the directory; it must be as durable as messages
            shall be, and is not closed. With several directories it must be given, since with one
            of them the rows would be lost.
        scope: tells these topics from others in the same store.
        options: limits, retention, times of every topic that is opened without its own.
        bookie: how each directory is written.
        scrub: how each directory is searched for damage.
        open_wait_s: so long it waits for a directory that another process has, in seconds.
        env, disk: time, chance and files of a simulation.

    Raises ConfigError (a directory is refused: the text names file and offset, and says what to
    do), QueueUnavailable (another process has it), StorageError (a disk fails). Of several
    directories those that fail or are refused are left out, as long as the others are enough for
    what all topics have stored and will store; they are used again once they can be.
    """
    paths = [absolute(one) for one in (directory, *more)]
    if len(set(paths)) < len(paths):
        raise ConfigError(f"open_topics: a directory is named twice: {', '.join(paths)}")
    if store is None and more:
        raise ConfigError(
            f"open_topics: {len(paths)} directories and no store: with rows in one of them, all "
            "would be lost with it; give store=, on a disk that is as safe as the copies are"
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
    """A directory of one bookie, or of one of several that have copies for each other."""
    bookie = f"{path}/bookie"
    return Home(bookie, "{silo}", bookie) if directories > 1 else Home(bookie, bookie)


def check_opening(store: object, open_wait_s: object) -> None:
    """Raise ConfigError for what is no store, or no time to wait."""
    if store is not None and not callable(getattr(store, "scan", None)):
        text = f"open_topics(store) is {show_text(repr(store))}; it must be a StateStore"
        raise ConfigError(f"{text}, such as SqliteStateStore(directory)")
    if not isinstance(open_wait_s, int | float) or not open_wait_s >= 0:
        text = f"open_topics(open_wait_s) is {show_text(repr(open_wait_s))}"
        raise ConfigError(f"{text}; it must be a number >= 0, in seconds")


def absolute(directory: object) -> str:
    """The path, whatever the working directory will be. Raises ConfigError."""
    is_path = isinstance(directory, str | Path) and str(directory) and "\0" not in str(directory)
    if not is_path:
        raise ConfigError(f"open_topics: {show_text(repr(directory))} is no directory's path")
    return str(Path(str(directory)).resolve())


@asynccontextmanager
async def store_of(store: StateStore | None, path: str, disk: Disk) -> AsyncIterator[StateStore]:
    """The store that was given, or one in the directory, which is closed at the end."""
    if store is not None:
        yield store
        return
    try:
        disk.make_dir(path)
    except OSError as error:
        text = f"open_topics: {show_text(path)}: it cannot be made a directory: {error.strerror}"
        raise ConfigError(f"{text}; give another path") from error
    made = load_plugin("millstream.stores", f"sqlite:{path}/rows")
    try:
        yield made
    finally:
        await made.aclose()


class LedgerTopics:
    """Topics by name; made by `open_topics`, and used on its loop."""

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
        """Open a topic, which is made if there is none; one that is open is given again.

        Partitions that cannot be opened are left out, as long as one can: see
        `LedgerTopic.unavailable`. What is None stays as it is stored. Other settings hold from each
        partition's next ledger on; the number of partitions never changes.

        Args:
            partitions: 1 to `PARTITIONS_MAX`; new: 1.
            ensemble, write_quorum, ack_quorum: over how many directories a ledger is spread, how
                many hold a message, how many have it on disk when `produce` returns. New: all of
                up to three directories hold it, and all but one of three have it then.
            ledger_bytes_max, ledger_entries_max, ledger_age_s: see `LedgerTopicSettings`.
            options: of this topic, while it is open.

        Raises ConfigError (values that cannot be, or that are not those it was made with),
        QueueFenced (another process opened it at the same time), Corrupt (a row is damaged, or
        older than it was), QueueUnavailable, StorageError.
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
        """What there is of a topic, and its settings."""
        record = await self._home.managed.read(name)
        part = record and await self._home.topics.find(record.names()[0])
        return record, part.settings if part else LedgerTopicSettings()

    def _check(self, name: str, quorum: Quorum) -> None:
        check_quorum(quorum)
        if quorum.ensemble > self._home.bookies:
            text = f"topic {show_text(name)}: ensemble={quorum.ensemble}, "
            text += f"write_quorum={quorum.write}, ack_quorum={quorum.ack}: each of the ensemble "
            text += "is a directory, and there are "
            raise ConfigError(f"{text}{self._home.bookies}: give open_topics more, on other disks")

    async def _open(
        self,
        name: str,
        partitions: int,
        settings: LedgerTopicSettings,
        options: LedgerTopicOptions | None,
    ) -> LedgerTopic:
        """Take all partitions over."""
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
        if fatal or not parts or self._is_closed:
            await made.aclose()
            raise [*fatal, *failed.values(), make_closed_error()][0]
        for at, error in failed.items():
            assert isinstance(error, QueueUnavailable)
            made.lack(at, error)
            log.error("%r: partition %d is not open, the others are: %s", made, at, error)
        if failed:
            home.context.tasks.start(self._open_rest(made, record.names(), chosen))
        self._topics[name] = made
        return made

    async def _open_rest(
        self, topic: LedgerTopic, names: Sequence[str], options: LedgerTopicOptions
    ) -> None:
        """Try again to open the partitions that could not be opened, until all are."""
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
        """All topics that there are, sorted, also those whose rows are damaged. Raises
        StorageError."""
        self._refuse_closed()
        scan = self._home.managed.scan()
        whole = [record.topic async for record in scan]
        return sorted([*whole, *map(unquote, scan.damaged)])

    async def delete(self, name: str) -> None:
        """Delete a topic with all of its messages and subscriptions; again is harmless.

        Raises StorageError: delete it again.
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
        """Close all topics, then let go of the directories; again is harmless. Who is cancelled
        hears of it at the end, so that no directory stays locked."""
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
    """What who comes too late hears."""
    return QueueUnavailable("these topics are closed: open them again")


def usual(directories: int) -> Quorum:
    """The quorum of a topic for which none is said: copies in up to three directories."""
    copies = min(directories, 3)
    return Quorum(copies, copies, min(copies, 2))


def choose_said(given: T | None, stored: T) -> T:
    """What is given, and else what is known."""
    return stored if given is None else given


def quorum_of(kept: Quorum, ensemble: int | None, write: int | None, ack: int | None) -> Quorum:
    """What is said, and else what is known, or what is usual for so many copies."""
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
    """Raise ConfigError or TypeError unless a topic can be called so, and have so many."""
    check_name(name)
    is_whole = type(partitions) is int  # a row with 2.0 could not be read
    if partitions is not None and not (is_whole and 1 <= partitions <= PARTITIONS_MAX):
        text = f"topic {show_text(name)}: partitions is {show_text(repr(partitions))}"
        raise ConfigError(f"{text}; it must be 1 to {PARTITIONS_MAX}")
    check_name(f"{name}/{(partitions or 1) - 1}")


def refuse_other(name: str, what: str, given: object, known: object) -> None:
    """Raise ConfigError if something else is given than is so."""
    if given is not None and known is not None and given != known:
        values = f"{show_text(repr(given))}, and {show_text(repr(known))}"
        raise ConfigError(
            f"topic {show_text(name)}: {what} is {values} so far: it cannot change; leave it away"
        )
