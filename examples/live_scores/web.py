"""The web server. It sends the results to each browser, and then each change."""

import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

from aiohttp import web
from board import CHANGES, Board, Results
from matches import TODAY

from millstream.runtime import Client, connect

CLIENT = web.AppKey("client", Client)


async def connected(app: web.Application) -> AsyncIterator[None]:
    """Keep a client open while the server runs."""
    async with connect(membership="sqlite:data", cluster="scores") as client:
        app[CLIENT] = client
        yield


async def page(request: web.Request) -> web.FileResponse:
    return web.FileResponse(Path(__file__).with_name("page.html"))


async def follow(request: web.Request) -> web.StreamResponse:
    """Server-sent events, as long as the browser listens."""
    client = request.app[CLIENT]
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    async with client.stream(CHANGES, TODAY).consume() as changes:
        await send(response, "results", await client.grain(Board, TODAY).read())
        async for change in changes:
            await send(response, "change", change.item)
    return response


async def send(response: web.StreamResponse, name: str, results: Results) -> None:
    data = json.dumps(asdict(results))
    await response.write(f"event: {name}\ndata: {data}\n\n".encode())


def make_app() -> web.Application:
    app = web.Application()
    app.cleanup_ctx.append(connected)
    app.router.add_get("/", page)
    app.router.add_get("/events", follow)
    return app


if __name__ == "__main__":
    # handler_cancellation: a browser that leaves ends its handler, and with it the subscription
    web.run_app(
        make_app(), host="127.0.0.1", port=8080, handler_cancellation=True, shutdown_timeout=1
    )
