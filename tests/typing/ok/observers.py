"""Observers as a user writes them: references, contexts, and the set of a grain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_type

from millstream.runtime import (
    Client,
    ClientUnavailable,
    ClusterError,
    Grain,
    LocalCluster,
    NotHosted,
    Observer,
    ObserverGone,
    ObserverSet,
    one_way,
    state,
    with_options,
)


class Viewer(Observer):
    async def goal(self, scorer: str, *, minute: int = 0) -> int:
        return len(scorer)

    @one_way
    async def whistle(self) -> None: ...


class LoudViewer(Viewer):
    def __init__(self, volume: int) -> None:
        self.volume = volume

    async def goal(self, scorer: str, *, minute: int = 0) -> int:
        return self.volume


class Match(Grain):
    stored = state(list[Viewer])

    def __init__(self) -> None:
        self.first: Viewer | None = None
        self.viewers = ObserverSet(self, Viewer, expires_s=600, deadline_s=5, waiting_max=10)

    async def watch(self, viewer: Viewer) -> bool:
        self.first = viewer
        self.viewers.add(viewer)
        return viewer in self.viewers

    async def score(self, scorer: str) -> int:
        assert_type(self.viewers, ObserverSet[Viewer])
        self.viewers.notify(Viewer.goal, scorer)
        self.viewers.notify(Viewer.goal, scorer, minute=90)
        self.viewers.notify(Viewer.whistle)
        self.viewers.notify_where(lambda one: one.key != "", Viewer.goal, scorer)
        assert_type(len(self.viewers) + self.viewers.dropped, int)
        assert_type(iter(self.viewers), Iterator[Viewer])
        if self.first is not None:
            self.viewers.remove(self.first)
            await self.first.whistle()
            return await with_options(self.first, timeout=2).goal(scorer)
        return 0


class Board(Grain, Viewer):
    """A grain that is an observer."""

    async def goal(self, scorer: str, *, minute: int = 0) -> int:
        return 1

    async def whistle(self) -> None: ...

    async def start(self) -> None:
        await self.grain(Match, "final").watch(self)


async def observe(client: Client, cluster: LocalCluster) -> None:
    async with client.observe(LoudViewer(3)) as viewer, cluster.observe(Viewer()) as other:
        assert_type(viewer, LoudViewer)
        assert_type(other, Viewer)
        assert_type(await client.grain(Match, "final").watch(viewer), bool)
        assert_type(await viewer.goal("Ada"), int)
    try:
        await viewer.goal("Ada")
    except ObserverGone as error:
        missing: NotHosted = error
        print(missing)
    except ClientUnavailable as error:
        gone: ClusterError = error
        print(gone, error.client.upper())
