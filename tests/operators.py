"""Clients with the permissions of an operator."""

from __future__ import annotations

from millstream.runtime import Client, Silo, connect

__all__ = ["operator_of"]


def operator_of(silo: Silo) -> Client:
    """Connect a client to one silo, with the operator's secret."""
    secret = silo.assembly.engine.end.secrets.operator.decode()
    return connect(silo.gateway, operator_secret=secret)
