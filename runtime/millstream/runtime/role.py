"""The role that the caller of a method has proved, and the check that a method is open to it.

This module owns `Role` and the one check, which the silo makes when it takes a call. The proof of a
role is part of the handshake (`wire`), and the marks of methods are in `definition`. A call has the
role of the process that made it, however many gateways and silos pass it on. The first silo that
takes a call from a client overwrites the role that the client wrote.
"""

from __future__ import annotations

from enum import IntEnum

from .errors import NotAllowed
from .text import show_text

__all__ = ["Role", "check_role"]

SECRET_TEXT = (
    "connect with the operator's secret. The command `millstream` reads the secret from "
    "MILLSTREAM_OPERATOR_SECRET or, with --operator DIRECTORY, from the file millstream.operator "
    "in the membership directory of the silos; a program passes connect(operator_secret=...)"
)


class Role(IntEnum):
    """The roles of callers, in ascending order. A caller may call each method that is open to its
    own role or a lower one.

    Attributes:
        CLIENT: Any program that connects. A client proves nothing.
        OPERATOR: A client that has proved that it knows the operator's secret of the cluster.
        SILO: A silo of the cluster, and the grains in it.
    """

    CLIENT = 1
    OPERATOR = 2
    SILO = 3


def check_role(caller: int, open_to: Role, what: str) -> None:
    """Raise NotAllowed if the method `what` is not open to callers of a role."""
    if caller >= open_to:
        return
    if open_to is Role.OPERATOR:
        raise NotAllowed(
            f"{show_text(what)} is open to operators of the cluster only: {SECRET_TEXT}"
        )
    raise NotAllowed(f"{show_text(what)} is open to silos of the cluster only, not to clients")
