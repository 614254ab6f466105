"""The name in a certificate: cluster, role and name of a process. Pure.

A certificate has exactly one name, the URI `millstream://CLUSTER/silo/NAME` or
`millstream://CLUSTER/client/NAME` among its subject alternative names. Host names are not compared,
because a silo may move to another host.

The idea of a name as URI is that of SPIFFE.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from millstream.runtime.role import Role

__all__ = ["CertifiedName", "name_in", "uri_of"]

ROLES = {"silo": Role.SILO, "client": Role.CLIENT}
NAME = re.compile(r"millstream://([^/?#]+)/(silo|client)/([^/?#]+)")
NAMES_MAX = 16
"""Subject alternative names of a certificate that are read."""


class CertifiedName(NamedTuple):
    """The identity in a certificate: the cluster, the role and the name of a process."""

    cluster: str
    role: Role
    name: str


def uri_of(name: CertifiedName) -> str:
    """Return the URI of a name, for the subject alternative names of a certificate."""
    (role,) = (text for text, role in ROLES.items() if role is name.role)
    return f"millstream://{quote(name.cluster, safe='')}/{role}/{quote(name.name, safe='')}"


def name_in(certificate: Mapping[str, Any] | None) -> CertifiedName | None:
    """Return the name in a certificate, or None unless it has exactly one.

    Args:
        certificate: The certificate as `ssl.SSLSocket.getpeercert` returns it.
    """
    texts = [] if certificate is None else certificate.get("subjectAltName", ())[:NAMES_MAX]
    found = [NAME.fullmatch(text) for kind, text in texts if kind == "URI"]
    names = [match for match in found if match is not None]
    if len(names) != 1:
        return None
    cluster, role, name = names[0].groups()
    return CertifiedName(unquote(cluster), ROLES[role], unquote(name))
