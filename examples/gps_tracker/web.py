"""The web server. It observes the notifier, and sends each batch of movements to the browsers."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

from aiohttp import web
from devices import HUB_EXPIRES_S, Hub, Movement, Notifier

from millstream.runtime import Client, MillstreamError, connect

BATCHES_MAX = 100
"""Batches that wait for one browser. A slower browser loses the oldest ones."""


class Browsers(Hub):
    """Passes the movements on to each browser that listens."""

    def __init__(self) -> None:
        self.queues: set[asyncio.Queue[bytes]] = set()

    async def moved(self, movements: list[Movement]) -> None:
        data = json.dumps([asdict(movement) for movement in movements])
        for queue in self.queues:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(f"data: {data}\n\n".encode())


BROWSERS = web.AppKey("browsers", Browsers)


async def observe(app: web.Application) -> AsyncIterator[None]:
    """Keep the server subscribed while it runs."""
    async with connect(membership="sqlite:data", cluster="gps") as client:
        async with client.observe(app[BROWSERS]) as hub:
            renewing = asyncio.create_task(stay_subscribed(client, hub))
            yield
            renewing.cancel()


async def stay_subscribed(client: Client, hub: Hub) -> None:
    """Subscribe again in time, because the notifier may have moved to another silo."""
    while True:
        try:
            await client.grain(Notifier, "all").subscribe(hub)
        except MillstreamError as error:
            print(f"could not subscribe: {error}", flush=True)
        await asyncio.sleep(HUB_EXPIRES_S / 30)


async def page(request: web.Request) -> web.FileResponse:
    return web.FileResponse(Path(__file__).with_name("page.html"))


async def follow(request: web.Request) -> web.StreamResponse:
    """Server-sent events, as long as the browser listens."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    queue: asyncio.Queue[bytes] = asyncio.Queue(BATCHES_MAX)
    request.app[BROWSERS].queues.add(queue)
    try:
        while True:
            await response.write(await queue.get())
    finally:
        request.app[BROWSERS].queues.discard(queue)


def make_app() -> web.Application:
    app = web.Application()
    app[BROWSERS] = Browsers()
    app.cleanup_ctx.append(observe)
    app.router.add_get("/", page)
    app.router.add_get("/events", follow)
    return app


if __name__ == "__main__":
    # handler_cancellation: a browser that leaves ends its handler
    web.run_app(
        make_app(), host="127.0.0.1", port=8080, handler_cancellation=True, shutdown_timeout=1
    )
