"""A silo with polls, and the web server of their page: `python main.py`."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

from aiohttp import web
from polls import Poll, Polls, Results, is_key

from millstream.runtime import MillstreamError, Silo

SILO = web.AppKey("silo", Silo)


async def run_silo(app: web.Application) -> AsyncIterator[None]:
    """Run the silo as long as the web server. Polls are stored in the directory `data`."""
    async with Silo(grains=[Poll, Polls], stores={"default": "sqlite:data"}) as silo:
        app[SILO] = silo
        yield


@web.middleware
async def answer_errors(request: web.Request, handler: Any) -> web.StreamResponse:
    """Answer a wrong poll or vote by 409, and a cluster that cannot answer by 503."""
    try:
        response: web.StreamResponse = await handler(request)
        return response
    except ValueError as error:
        raise web.HTTPConflict(text=str(error)) from None
    except MillstreamError as error:
        raise web.HTTPServiceUnavailable(text=str(error)) from None


def poll_of(request: web.Request) -> Poll:
    """Return the poll that the address names."""
    key = request.match_info["poll"]
    if not is_key(key):
        raise web.HTTPBadRequest(text="the key of a poll has 1 to 40 letters, digits or hyphens")
    return request.app[SILO].grain(Poll, key)


async def body_of(request: web.Request, **kinds: type) -> list[Any]:
    """Return the fields of a request, in the order of `kinds`."""
    try:
        body = await request.json()
        found = [body[name] for name in kinds]
    except (ValueError, KeyError, TypeError):
        raise web.HTTPBadRequest(text=f"the body is not JSON with {', '.join(kinds)}") from None
    for value, (name, kind) in zip(found, kinds.items(), strict=True):
        if type(value) is not kind:
            raise web.HTTPBadRequest(text=f"{name} is no {kind.__name__}")
    return found


async def show_page(request: web.Request) -> web.FileResponse:
    return web.FileResponse(Path(__file__).with_name("page.html"))


async def list_polls(request: web.Request) -> web.Response:
    """`GET /polls` has the questions of the newest polls."""
    return web.json_response(await request.app[SILO].grain(Polls, "all").list_all())


async def open_poll(request: web.Request) -> web.Response:
    """`POST /polls` opens a poll."""
    question, options = await body_of(request, question=str, options=list)
    if not all(isinstance(option, str) for option in options):
        raise web.HTTPBadRequest(text="an option is no text")
    key = uuid4().hex[:8]
    await request.app[SILO].grain(Poll, key).open(question, options)
    return web.json_response({"poll": key})


async def vote(request: web.Request) -> web.Response:
    """`POST /polls/{poll}/votes` votes."""
    voter, option = await body_of(request, voter=str, option=int)
    if not is_key(voter):
        raise web.HTTPBadRequest(text="the name of a voter has 1 to 40 letters, digits or hyphens")
    return web.json_response(asdict(await poll_of(request).vote(voter, option)))


async def follow(request: web.Request) -> web.StreamResponse:
    """`GET /polls/{poll}/results` are server-sent events with the results of a poll."""
    async with aclosing(poll_of(request).watch()) as results:
        first = await anext(results)  # an error has a status of its own
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(event_of(first))
        async for each in results:
            await response.write(event_of(each))
    return response


def event_of(results: Results) -> bytes:
    """Return a server-sent event."""
    return f"data: {json.dumps(asdict(results))}\n\n".encode()


def make_app() -> web.Application:
    app = web.Application(middlewares=[answer_errors])
    app.cleanup_ctx.append(run_silo)
    app.router.add_get("/", show_page)
    app.router.add_get("/polls", list_polls)
    app.router.add_post("/polls", open_poll)
    app.router.add_post("/polls/{poll}/votes", vote)
    app.router.add_get("/polls/{poll}/results", follow)
    return app


if __name__ == "__main__":
    # handler_cancellation: a browser that leaves ends its handler, and so the streamed result
    web.run_app(
        make_app(), host="127.0.0.1", port=8080, handler_cancellation=True, shutdown_timeout=1
    )
