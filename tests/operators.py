"""Clients that may do what operators do."""

from __future__ import annotations

from millstream.runtime import Client, Silo, connect

__all__ = ["operator_of"]


def operator_of(silo: Silo) -> Client:
    """A client of one silo that knows the operator's secret."""
    secret = silo.assembly.engine.end.secrets.operator.decode()
    return connect(silo.gateway, operator_secret=secret)
