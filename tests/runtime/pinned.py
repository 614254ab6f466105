"""Clients that know only gateways chosen by the test, and silos that send clients no lists."""

from __future__ import annotations

from millstream.runtime import Client, Silo
from millstream.runtime.wire.message import GatewayView

__all__ = ["hush", "pin"]


def pin(client: Client, *gateways: str) -> None:
    """Let an open client know only these gateways, until it asks for the list again."""
    client.gateways._list.start_over(GatewayView(1, list(gateways)), "pinned")


def hush(*silos: Silo) -> None:
    """Let silos tell clients of gateways only when they are asked."""
    for silo in silos:
        silo.assembly.visitors._news.follow = lambda view: None  # type: ignore[method-assign]
