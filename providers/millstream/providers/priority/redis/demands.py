"""The requirements that a Redis server must meet. Pure.

Owns `objection` and `UnfitServer`. `server` reads the settings.
"""

from __future__ import annotations

from collections.abc import Mapping

from redis.exceptions import RedisError

from .options import DURABILITIES, Durability

__all__ = ["SETTINGS", "UnfitServer", "fields_of", "objection"]

VERSION_MIN = (7, 0)
SETTINGS = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite")
WEAKER = "or accept a weaker guarantee with RedisOptions(durability={!r})"


class UnfitServer(RedisError):
    """The server does not meet the requirements.

    An operator must change its settings, or the options.
    """


def fields_of(info: bytes) -> dict[str, str]:
    """The answer of `INFO`, by field."""
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    return {field: value for field, colon, value in lines if colon}


def objection(
    info: Mapping[str, str], settings: Mapping[str, str] | None, durability: Durability
) -> str:
    """Why the server cannot be used and what to do; an empty text if it can be used.

    Args:
        info: Fields of `INFO`.
        settings: The values of `SETTINGS`; None if the server does not show them.
        durability: The required guarantee.
    """
    version = info.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < VERSION_MIN:
        return f"is Redis {version}; 7.0 or later is needed"
    if info.get("cluster_enabled") == "1":
        return "is a node of a Redis Cluster, which is not supported: use a single server"
    if info.get("role", "master") != "master":
        master = f"{info.get('master_host')}:{info.get('master_port')}"
        return f"is a replica: give the address of its master, {master}"
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        return (
            f"has maxmemory-policy {policy}, so it would delete messages when its memory is full: "
            "set it to noeviction"
        )
    if durability == "none":
        return ""
    return too_weak(settings, durability)


def too_weak(settings: Mapping[str, str] | None, durability: Durability) -> str:
    if settings is None:
        return (
            "refuses CONFIG GET, so its durability cannot be checked: allow the command for this "
            "user (ACL SETUSER ... +config|get), " + WEAKER.format("none")
        )
    found = find_promised(settings)
    if DURABILITIES.index(found) >= DURABILITIES.index(durability):
        return ""
    has = ", ".join(f"{name} {settings.get(name, '?')}" for name in SETTINGS)
    wanted = f"appendonly yes, appendfsync {durability}"
    if durability == "always":
        wanted += ", no-appendfsync-on-rewrite no"
    return (
        f"has {has}, which guarantees less than durability={durability!r}: set {wanted}, "
        + WEAKER.format(found)
    )


def find_promised(settings: Mapping[str, str]) -> Durability:
    """The guarantee of the settings.

    `no-appendfsync-on-rewrite` skips all syncs while the file is rewritten.
    """
    if settings.get("appendonly") != "yes" or settings.get("appendfsync") == "no":
        return "none"
    is_always = settings.get("appendfsync") == "always"
    is_kept = settings.get("no-appendfsync-on-rewrite") == "no"
    return "always" if is_always and is_kept else "everysec"
