"""The accounts of Chirper: grains that follow each other, and observers that show messages."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime

from millstream.runtime import Grain, Observer, ObserverSet, grain, state

SHOWN_MAX = 100
VIEWER_EXPIRES_S = 60.0
CHARS_MAX = 280


@dataclass(frozen=True)
class Chirp:
    """One message."""

    author: str
    text: str
    at: datetime


@dataclass
class Profile:
    """The stored data of one account. `received` has the newest messages of followed accounts."""

    following: set[str] = field(default_factory=set)
    followers: set[str] = field(default_factory=set)
    received: list[Chirp] = field(default_factory=list)


class Viewer(Observer):
    """A program that shows the messages of one account."""

    async def new_chirp(self, chirp: Chirp) -> None:
        print(f"{chirp.author}: {chirp.text}", flush=True)

    async def new_follower(self, name: str) -> None:
        print(f"{name} follows you now", flush=True)


@grain(reentrant=True)
class Account(Grain):
    """One account; the key is its name.

    Two accounts that follow each other may publish at the same time. Without `reentrant`, each
    would wait for the other.
    """

    profile = state(Profile)

    def __init__(self) -> None:
        self._viewers = ObserverSet(self, Viewer, expires_s=VIEWER_EXPIRES_S)

    async def publish(self, text: str) -> int:
        """Send a message to all followers. Returns their number."""
        if not 1 <= len(text) <= CHARS_MAX:
            raise ValueError(f"a message has 1 to {CHARS_MAX} characters, and this has {len(text)}")
        chirp = Chirp(self.key, text, datetime.now(UTC))
        followers = self.profile.value.followers
        self._viewers.notify(Viewer.new_chirp, chirp)
        await asyncio.gather(*(self.grain(Account, name).receive(chirp) for name in followers))
        return len(followers)

    async def follow(self, name: str) -> None:
        """Receive the messages of another account from now on."""
        if name == self.key:
            raise ValueError("an account cannot follow itself")
        await self.grain(Account, name).add_follower(self.key)
        self.profile.value.following.add(name)
        await self.profile.write()

    async def unfollow(self, name: str) -> None:
        await self.grain(Account, name).remove_follower(self.key)
        self.profile.value.following.discard(name)
        await self.profile.write()

    async def add_follower(self, name: str) -> None:
        self.profile.value.followers.add(name)
        await self.profile.write()
        self._viewers.notify(Viewer.new_follower, name)

    async def remove_follower(self, name: str) -> None:
        self.profile.value.followers.discard(name)
        await self.profile.write()

    async def receive(self, chirp: Chirp) -> None:
        """Keep a message of a followed account, and show it."""
        received = self.profile.value.received
        received.append(chirp)
        del received[:-SHOWN_MAX]
        await self.profile.write()
        self._viewers.notify(Viewer.new_chirp, chirp)

    async def watch(self, viewer: Viewer) -> list[Chirp]:
        """Show new messages to a viewer. Returns the received ones. Repeat the call in time."""
        self._viewers.add(viewer)
        return self.profile.value.received

    async def unwatch(self, viewer: Viewer) -> None:
        self._viewers.remove(viewer)

    async def following(self) -> set[str]:
        return self.profile.value.following
