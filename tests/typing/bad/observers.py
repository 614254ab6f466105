"""Mistakes with observers that type checkers find."""

from __future__ import annotations

from millstream.runtime import Client, Grain, LocalCluster, Observer, ObserverSet


class Viewer(Observer):
    async def goal(self, scorer: str, *, minute: int = 0) -> int:
        return len(scorer)


class Other(Observer):
    async def end(self) -> None: ...


class Match(Grain):
    def __init__(self) -> None:
        self.viewers = ObserverSet(self, Viewer, expires_s=600)
        self.endless = ObserverSet(self, Viewer)  # E

    async def watch(self, viewer: Viewer) -> None:
        self.viewers.add(viewer)
        self.viewers.add("viewer")  # E
        self.viewers.remove(Other())  # E

    async def score(self, scorer: str) -> None:
        self.viewers.notify(Viewer.goal, 7)  # E
        self.viewers.notify(Viewer.goal)  # E
        self.viewers.notify(Viewer.goal, scorer, minute="90")  # E
        self.viewers.notify(Viewer.goal, scorer, second=1)  # E
        self.viewers.notify(Other.end)  # E
        self.viewers.notify(Match.score, scorer)  # E
        self.viewers.notify("goal", scorer)  # E
        self.viewers.notify_where(lambda one: one.volume > 1, Viewer.goal, scorer)  # E
        self.viewers.notify_where("all", Viewer.goal, scorer)  # E


async def observe(client: Client, cluster: LocalCluster) -> None:
    client.observe(Viewer)  # E
    client.observe(Match())  # E
    cluster.observe("viewer")  # E
    async with client.observe(Viewer()) as viewer:
        await viewer.goal(7)  # E
        text: str = await viewer.goal("Ada")  # E
        print(text)
        await client.grain(Match, "final").watch(viewer)
    async with client.observe(Other()) as other:
        await client.grain(Match, "final").watch(other)  # E
    with client.observe(Viewer()):  # E
        pass
