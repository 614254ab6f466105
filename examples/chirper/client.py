"""The client of one account: `python client.py ada`. It reads commands, and shows messages."""

import asyncio
import sys

from accounts import VIEWER_EXPIRES_S, Account, Viewer

from millstream.runtime import Client, MillstreamError, connect

HELP = "commands: say TEXT, follow NAME, unfollow NAME, following, quit"


async def obey(account: Account, line: str) -> bool:
    """Run one command. Returns False for `quit`."""
    command, _, rest = line.strip().partition(" ")
    if command == "say":
        print(f"sent to {await account.publish(rest)} followers", flush=True)
    elif command == "follow":
        await account.follow(rest)
    elif command == "unfollow":
        await account.unfollow(rest)
    elif command == "following":
        print(", ".join(sorted(await account.following())) or "nobody", flush=True)
    elif command:
        if command == "quit":
            return False
        print(HELP, flush=True)
    return True


async def keep_watching(account: Account, viewer: Viewer) -> None:
    """Stay a viewer of the account, also if the account moves to another silo."""
    while True:
        await asyncio.sleep(VIEWER_EXPIRES_S / 6)
        try:
            await account.watch(viewer)
        except MillstreamError as error:
            print(f"the account cannot be watched at the moment: {error}", flush=True)


async def use(client: Client, name: str) -> None:
    account = client.grain(Account, name)
    async with client.observe(Viewer()) as viewer:
        for chirp in await account.watch(viewer):
            await Viewer().new_chirp(chirp)
        print(f"{name} is here; {HELP}", flush=True)
        watching = asyncio.create_task(keep_watching(account, viewer))
        try:
            while line := await asyncio.to_thread(sys.stdin.readline):
                try:
                    if not await obey(account, line):
                        break
                except (MillstreamError, ValueError) as error:
                    print(f"that failed: {error}", flush=True)
        finally:
            watching.cancel()
            await account.unwatch(viewer)


async def main(name: str) -> None:
    async with connect(membership="sqlite:data", cluster="chirper") as client:
        await use(client, name)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python client.py NAME")
    asyncio.run(main(sys.argv[1]))
