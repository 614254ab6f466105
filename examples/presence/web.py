"""The web server. It watches the games, and sends each change to the browsers."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

from aiohttp import web
from games import WATCHER_EXPIRES_S, Game, Player, Status, Watcher

from millstream.runtime import Client, MillstreamError, connect

CHANGES_MAX = 1_000
"""Changes that wait for one browser. A slower browser loses the oldest ones."""


class Browsers(Watcher):
    """Passes changes on to each browser that listens."""

    def __init__(self) -> None:
        self.queues: set[asyncio.Queue[bytes]] = set()

    async def changed(self, game: str, status: Status) -> None:
        data = json.dumps({"game": game, **asdict(status)})
        for queue in self.queues:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(f"data: {data}\n\n".encode())


BROWSERS = web.AppKey("browsers", Browsers)
CLIENT = web.AppKey("client", Client)
GAMES = web.AppKey("games", list[str])


async def watch_games(app: web.Application) -> AsyncIterator[None]:
    """Keep the server watching while it runs."""
    async with connect(membership="sqlite:data", cluster="presence") as client:
        app[CLIENT] = client
        async with client.observe(app[BROWSERS]) as watcher:
            renewing = asyncio.create_task(stay_watching(client, app[GAMES], watcher))
            yield
            renewing.cancel()


async def stay_watching(client: Client, games: list[str], watcher: Watcher) -> None:
    """Watch again in time, because the games may have moved to another silo."""
    while True:
        calls = [client.grain(Game, game).watch(watcher) for game in games]
        for failed in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(failed, MillstreamError):
                print(f"could not watch a game: {failed}", flush=True)
        await asyncio.sleep(WATCHER_EXPIRES_S / 30)


async def show_page(request: web.Request) -> web.FileResponse:
    return web.FileResponse(Path(__file__).with_name("page.html"))


async def show_player(request: web.Request) -> web.Response:
    """The game that a player is in."""
    name = request.match_info["name"]
    try:
        game = await request.app[CLIENT].grain(Player, name).current_game()
    except MillstreamError as error:
        raise web.HTTPServiceUnavailable(text=str(error)) from None
    return web.json_response({"player": name, "game": game})


async def follow(request: web.Request) -> web.StreamResponse:
    """Server-sent events, as long as the browser listens."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    queue: asyncio.Queue[bytes] = asyncio.Queue(CHANGES_MAX)
    request.app[BROWSERS].queues.add(queue)
    try:
        while True:
            await response.write(await queue.get())
    finally:
        request.app[BROWSERS].queues.discard(queue)


def make_app(games: int) -> web.Application:
    app = web.Application()
    app[BROWSERS], app[GAMES] = Browsers(), [f"game-{number}" for number in range(games)]
    app.cleanup_ctx.append(watch_games)
    app.router.add_get("/", show_page)
    app.router.add_get("/events", follow)
    app.router.add_get("/players/{name}", show_player)
    return app


if __name__ == "__main__":
    # handler_cancellation: a browser that leaves ends its handler
    web.run_app(
        make_app(int(sys.argv[1]) if sys.argv[1:] else 10),
        host="127.0.0.1",
        port=8080,
        handler_cancellation=True,
        shutdown_timeout=1,
    )
