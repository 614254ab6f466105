"""The settings that a silo shows other silos for comparison: `MemberRow.agreement`.

This module collects them from stores, options and parts. It also refuses a store that other silos
cannot see. Equal configurations give equal texts in every process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millstream.runtime.definition.grain import Grain
from millstream.runtime.definition.storage import StateStore
from millstream.runtime.errors import ConfigError
from millstream.runtime.options import MembershipOptions
from millstream.runtime.wire.message import WIRE_VERSION

from .part import SiloPart

__all__ = ["agree", "agreement_of", "find_used_stores"]

AGREEMENT_BYTES_MAX = 4_000
VOTING = ("votes_for_death", "vote_expires_s", "stale_after_s")


def agree(
    table: object,
    used: Mapping[str, StateStore],
    parts: Mapping[str, SiloPart],
    options: MembershipOptions,
) -> tuple[tuple[str, str], ...]:
    """Check the used stores, and return the settings for comparison. Raises ConfigError."""
    check_stores(table, used)
    return agreement_of(used, options, parts)


def agreement_of(
    stores: Mapping[str, StateStore], options: MembershipOptions, parts: Mapping[str, SiloPart]
) -> tuple[tuple[str, str], ...]:
    """Return all settings that silos of one cluster must have alike, by name.

    Raises ConfigError above AGREEMENT_BYTES_MAX, because they are sent with every view.
    """
    found = {"the wire version": str(WIRE_VERSION), "counting of votes": options_text(options)}
    for name, store in stores.items():
        found[f"store {name!r}"] = store_text(store)
    for name, part in parts.items():
        for what, text in part.agreement().items():
            found[f"{what} of {name!r}"] = text
    size = sum(len(what.encode()) + len(text.encode()) for what, text in found.items())
    if size > AGREEMENT_BYTES_MAX:
        raise ConfigError(
            f"the settings that must be equal at all silos take {size} bytes, and a member's row "
            f"has room for {AGREEMENT_BYTES_MAX}: return digests from SiloPart.agreement"
        )
    return tuple(sorted(found.items()))


def find_used_stores(
    stores: Mapping[str, StateStore], grains: Iterable[type[Grain]], parts: Mapping[str, SiloPart]
) -> dict[str, StateStore]:
    """Return the stores that the silo may use: all if it has parts, else those of its states.

    So silos whose grains have no state need not share a store.
    """
    if parts:
        return dict(stores)
    states = [field for cls in grains for field in cls.__millstream_type__.states.values()]
    used = {field.store for field in states}
    return {name: store for name, store in stores.items() if name in used}


def options_text(options: MembershipOptions) -> str:
    """Return the options by which votes are counted. Silos may probe at different rates."""
    return ", ".join(f"{name}={getattr(options, name):g}" for name in VOTING)


def store_text(store: object) -> str:
    """Return the class of a store and its place, if known: `identity`, else `place`.

    A store has an `identity` if one place can have several names, such as paths.
    """
    place: str = getattr(store, "identity", "") or getattr(store, "place", "")
    return f"{type(store).__qualname__} {place}".rstrip()


def check_stores(table: object, stores: Mapping[str, StateStore]) -> None:
    """Raise ConfigError for a store in the memory of one process under a shared table."""
    if getattr(table, "is_of_one_process", False):
        return
    for name, store in stores.items():
        if getattr(store, "is_of_one_process", False):
            raise ConfigError(
                f"the membership table ({type(table).__qualname__}) is shared with other "
                f"processes, and store {name!r} ({type(store).__qualname__}) is in the memory of "
                f"this process: pass Silo(stores={{{name!r}: 'sqlite:directory'}}), or, if each "
                "silo may have its own store, MemoryStateStore(private=True)"
            )
