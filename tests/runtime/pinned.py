"""Clients that know the gateways of a test's choice, and silos that tell clients nothing."""

from __future__ import annotations

from millstream.runtime import Client, Silo
from millstream.runtime.wire.message import GatewayView

__all__ = ["hush", "pin"]


def pin(client: Client, *gateways: str) -> None:
    """Have an open client know these gateways only, until it asks for the list again."""
    client.gateways._list.start_over(GatewayView(1, list(gateways)), "pinned")


def hush(*silos: Silo) -> None:
    """Have silos tell clients of gateways only when they are asked."""
    for silo in silos:
        silo.assembly.visitors._news.follow = lambda view: None  # type: ignore[method-assign]
