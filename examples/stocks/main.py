"""A silo with stocks, and the web server of its page: `python main.py`."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

from aiohttp import web
from stocks import Quote, Stock, is_symbol

from millstream.runtime import MillstreamError, Silo

SYMBOLS = ["MSFT", "GOOG", "AAPL", "GME", "AMBA"]
SYMBOLS_MAX = 50
"""Symbols of one request."""
SILO = web.AppKey("silo", Silo)


async def run_silo(app: web.Application) -> AsyncIterator[None]:
    """Run the silo as long as the web server."""
    async with Silo(grains=[Stock]) as silo:
        app[SILO] = silo
        yield


async def page(request: web.Request) -> web.FileResponse:
    return web.FileResponse(Path(__file__).with_name("page.html"))


async def quotes(request: web.Request) -> web.Response:
    """The quotes of the symbols in the query, such as `/quotes?symbols=MSFT,GOOG`."""
    given = request.query.get("symbols", "")
    symbols = given.upper().split(",") if given else SYMBOLS
    if len(symbols) > SYMBOLS_MAX or not all(map(is_symbol, symbols)):
        text = f"symbols is not 1 to {SYMBOLS_MAX} symbols of 1 to 8 letters or digits"
        raise web.HTTPBadRequest(text=text)
    silo = request.app[SILO]
    try:
        found: list[Quote] = await asyncio.gather(
            *(silo.grain(Stock, one).quote() for one in symbols)
        )
    except MillstreamError as error:
        raise web.HTTPServiceUnavailable(text=str(error)) from error
    return web.json_response(text=json.dumps([asdict(one) for one in found]))


def make_app() -> web.Application:
    app = web.Application()
    app.cleanup_ctx.append(run_silo)
    app.router.add_get("/", page)
    app.router.add_get("/quotes", quotes)
    return app


if __name__ == "__main__":
    web.run_app(make_app(), host="127.0.0.1", port=8080, shutdown_timeout=1)
