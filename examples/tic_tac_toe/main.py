"""A silo with games, and the web server of their page: `python main.py`."""

import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aiohttp import web
from games import Board, Game, Pairing, Player, is_name

from millstream.runtime import MillstreamError, Silo

SILO = web.AppKey("silo", Silo)


async def run_silo(app: web.Application) -> AsyncIterator[None]:
    """Run the silo as long as the web server."""
    async with Silo(grains=[Game, Player, Pairing]) as silo:
        app[SILO] = silo
        yield


@web.middleware
async def answer_errors(request: web.Request, handler: Any) -> web.StreamResponse:
    """Answer a move that is not allowed by 409, and a cluster that cannot answer by 503."""
    try:
        response: web.StreamResponse = await handler(request)
        return response
    except ValueError as error:
        raise web.HTTPConflict(text=str(error)) from None
    except MillstreamError as error:
        raise web.HTTPServiceUnavailable(text=str(error)) from None


async def body_of(request: web.Request) -> dict[str, Any]:
    """Return the fields of a request, with the name of a player."""
    try:
        found = await request.json()
        player = found["player"]
    except (ValueError, KeyError, TypeError):
        raise web.HTTPBadRequest(text='the body is not JSON with a "player"') from None
    if not isinstance(player, str) or not is_name(player):
        raise web.HTTPBadRequest(text="a name has 1 to 20 letters or digits, and is not draw")
    return dict(found)


async def show_page(request: web.Request) -> web.FileResponse:
    return web.FileResponse(Path(__file__).with_name("page.html"))


async def find_game(request: web.Request) -> web.Response:
    """`POST /games` finds a game for a player."""
    body = await body_of(request)
    game = await request.app[SILO].grain(Pairing, "all").find_game(body["player"])
    return web.json_response({"game": game})


async def show_game(request: web.Request) -> web.Response:
    """`GET /games/{game}` is the board of a game."""
    return show(await request.app[SILO].grain(Game, request.match_info["game"]).board())


async def move(request: web.Request) -> web.Response:
    """`POST /games/{game}/moves` makes a move."""
    body = await body_of(request)
    cell = body.get("cell")
    if not isinstance(cell, int) or isinstance(cell, bool):
        raise web.HTTPBadRequest(text="cell is not a number from 0 to 8")
    game = request.app[SILO].grain(Game, request.match_info["game"])
    return show(await game.play(body["player"], cell))


async def show_player(request: web.Request) -> web.Response:
    """`GET /players/{player}` has the games and results of a player."""
    record = await request.app[SILO].grain(Player, request.match_info["player"]).record()
    return web.json_response(text=json.dumps(asdict(record)))


def show(board: Board) -> web.Response:
    """Return a board with the player who moves next."""
    return web.json_response({**asdict(board), "turn": board.turn})


def make_app() -> web.Application:
    app = web.Application(middlewares=[answer_errors])
    app.cleanup_ctx.append(run_silo)
    app.router.add_get("/", show_page)
    app.router.add_post("/games", find_game)
    app.router.add_get("/games/{game}", show_game)
    app.router.add_post("/games/{game}/moves", move)
    app.router.add_get("/players/{player}", show_player)
    return app


if __name__ == "__main__":
    web.run_app(make_app(), host="127.0.0.1", port=8080, shutdown_timeout=1)
