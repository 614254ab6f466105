"""A grain for each stock, which refreshes its price by a timer, and generated prices."""

import math
from dataclasses import dataclass
from hashlib import blake2b
from time import time

from millstream.runtime import Grain, timer

REFRESH_EVERY_S = 1.0
SYMBOL_CHARS_MAX = 8


@dataclass(frozen=True)
class Quote:
    """The price of a stock in dollars, at a Unix time in seconds.

    `change` is the difference to the price when the grain was activated, in percent.
    """

    symbol: str
    price: float
    change: float
    at_s: float


class Stock(Grain):
    """One stock. The first request of a quote activates it; without requests, it ends in time."""

    async def on_activate(self) -> None:
        self._first = await fetch_price(self.key, time())
        self._set(self._first, time())

    async def quote(self) -> Quote:
        """Return the last price, without a request to the source."""
        return self._quote

    @timer(every=REFRESH_EVERY_S)
    async def _refresh(self) -> None:
        now_s = time()
        self._set(await fetch_price(self.key, now_s), now_s)

    def _set(self, price: float, at_s: float) -> None:
        change = 100 * (price / self._first - 1)
        self._quote = Quote(self.key, price, round(change, 2), at_s)


async def fetch_price(symbol: str, at_s: float) -> float:
    """Return the price of a stock at a time. A real source would answer over the network.

    The price is computed from symbol and time, so all silos see the same price.
    """
    digest = blake2b(symbol.encode(), digest_size=8).digest()
    base = 20 + int.from_bytes(digest[:2]) % 300
    waves = sum(
        math.sin(at_s / period_s + byte) * height
        for period_s, height, byte in zip(
            (3, 17, 97, 601), (0.3, 1, 2, 4), digest[2:], strict=False
        )
    )
    return round(base * (1 + waves / 100), 2)


def is_symbol(text: str) -> bool:
    """Return whether a text can be the symbol of a stock, such as MSFT."""
    return 0 < len(text) <= SYMBOL_CHARS_MAX and text.isascii() and text.isalnum()
