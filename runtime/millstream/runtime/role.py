"""What the caller of a method has proved to be, and to whom a method is open.

Owns: `Role`, and the one check, made where a call is taken. Not: the proof of a role
(`wire/greeting`), the marks (`definition/markers`). Invariant: a call has the role of the process
that made it, however many gateways and silos pass it on; the first silo that takes it from a client
writes the role over what the client has written.
"""

from __future__ import annotations

from enum import IntEnum

from .errors import NotAllowed
from .text import show_text

__all__ = ["Role", "check_role"]

SECRET_TEXT = (
    "connect with the operator's secret. The command `millstream` takes it from "
    "MILLSTREAM_OPERATOR_SECRET, or with --operator DIRECTORY from the membership directory of the "
    "silos (millstream.operator); a program gives connect(operator_secret=...)"
)


class Role(IntEnum):
    """The roles of callers, in order: each may call what is open to those before it.

    CLIENT: any program that connects; it proves nothing. OPERATOR: a client that has proved that
    it knows the operator's secret. SILO: a silo of the cluster.
    """

    CLIENT = 1
    OPERATOR = 2
    SILO = 3


def check_role(caller: int, open_to: Role, what: str) -> None:
    """Raise NotAllowed if a method (`what`) is not open to callers of a role."""
    if caller >= open_to:
        return
    if open_to is Role.OPERATOR:
        raise NotAllowed(f"{show_text(what)} is for operators of the cluster: {SECRET_TEXT}")
    raise NotAllowed(f"{show_text(what)} is for silos of the cluster, not for clients")
