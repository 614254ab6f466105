"""Server-sent events from streams: `python examples/sse/main.py`.

A web handler reads a stream while its browser listens. The id of each message is the event's token.
A browser that reconnects sends the last id that it received, and continues after it. A browser that
disconnects ends its subscription. A browser that reads slowly delays only itself.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass

from aiohttp import ClientSession, web

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Client, LocalCluster
from millstream.streams import PersistentStreams, Start, StreamEvents, StreamNamespace, Token


@dataclass
class Price:
    symbol: str
    cents: int


PRICES = StreamNamespace("prices", Price)
CLIENT = web.AppKey("client", Client)


async def listen(request: web.Request) -> web.StreamResponse:
    """Serve `GET /prices/<symbol>`: events from now on, or after `Last-Event-ID`."""
    last_id = request.headers.get("Last-Event-ID")
    after = None if last_id is None else Token.parse(last_id)
    start: Start = "next" if after is None else after
    prices = request.app[CLIENT].stream(PRICES, request.match_info["symbol"])
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    with suppress(ConnectionResetError):  # the browser disconnected
        await send(prices.consume(start=start), after, request, response)
    return response


async def send(
    prices: StreamEvents[Price],
    after: Token | None,
    request: web.Request,
    response: web.StreamResponse,
) -> None:
    """Write events until the browser disconnects; undelivered ones are not acknowledged."""
    async with prices as events:
        await response.prepare(request)
        async for event in events:
            if after is not None and event.token <= after:
                continue  # the browser has this event
            data = json.dumps({"symbol": event.item.symbol, "cents": event.item.cents})
            await response.write(f"id: {event.token}\ndata: {data}\n\n".encode())


async def browse(url: str, count: int, last_id: str = "") -> str:
    """Behave like a browser's EventSource; return the id of the last event."""
    async with ClientSession() as session:
        headers = {"Last-Event-ID": last_id} if last_id else {}
        async with session.get(url, headers=headers) as response:
            async for raw in response.content:
                name, _, value = raw.decode().rstrip().partition(": ")
                if name == "id":
                    last_id = value
                elif name == "data":
                    print(value)
                    count -= 1
                    if not count:
                        break
    return last_id


async def serve(client: Client) -> tuple[web.AppRunner, str]:
    """Start the server on a free port; return it and its address."""
    app = web.Application()
    app[CLIENT] = client
    app.router.add_get("/prices/{symbol}", listen)
    # a disconnect cancels the handler, even if no event arrives
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    return runner, f"http://{host}:{port}/prices"


def streams() -> PersistentStreams:
    return PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer())


async def main() -> None:
    async with LocalCluster(silos=2, grains=[], streams={"default": streams}) as cluster:
        runner, url = await serve(cluster.client)
        prices = cluster.stream(PRICES, "ACME")

        async def trade() -> None:
            for cents in range(1_000, 1_100):
                await prices.publish(Price("ACME", cents))
                await asyncio.sleep(0.02)

        trading = asyncio.create_task(trade())
        # this slow reader keeps the events, so that a browser that reconnects can read them
        async with prices.consume(name="archive"):
            last_id = await browse(f"{url}/ACME", 3)
            print("the browser reconnects")
            await browse(f"{url}/ACME", 3, last_id)
        trading.cancel()
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
