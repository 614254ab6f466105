"""The moves of activations between silos.

`Migrations` chooses the silo for an activation that leaves, and sends its package there.
`MigrationTarget` takes the packages of other silos. `catalog` ends and starts the activations, and
the directory replaces the entry by compare-and-set.

Invariants:

- The directory never has two entries. The new silo replaces exactly the entry of the activation
  that sent the package; if that entry is gone or another one, the package is dropped.
- While a package travels, both activations may be reported to a new owner of their range. The new
  one has the higher id, so its entry wins.
- An activation moves only to a silo that hosts its own version of the type or a later one.
- An activation whose move fails, for whatever reason, ends as usual. The next call activates the
  grain from its store.

Source: `ActivationMigrationManager` of Orleans.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping

from millstream.runtime.calls.system_target import SystemTarget, Targets
from millstream.runtime.definition.markers import timeout
from millstream.runtime.errors import ConfigError, MillstreamError
from millstream.runtime.text import show_text
from millstream.runtime.turns.activation import Activation
from millstream.runtime.turns.catalog import Catalog, Former
from millstream.runtime.turns.kind import GrainKind

from .placer import Placer

__all__ = ["MIGRATIONS_MAX", "MigrationTarget", "Migrations"]

log = logging.getLogger("millstream.migrations")

MIGRATIONS_MAX = 100
"""Packages that one silo sends at the same time, and that it takes at the same time."""
SENT_WITHIN_S = 5.0
"""Seconds for the new silo to register the grain."""


class MigrationTarget(SystemTarget):
    """The `$migration` target: it takes the packages of other silos."""

    target_name = "$migration"

    def __init__(self, migrations: Migrations) -> None:
        self._migrations = migrations

    @timeout(SENT_WITHIN_S)
    async def accept(
        self, name: str, key: str, silo: str, activation_id: int, package: bytes
    ) -> bool:
        """Continue an activation of another silo here. Returns whether the grain is here now."""
        return await self._migrations.take(name, key, Former(silo, activation_id), package)


class Migrations:
    """The moves of one silo.

    Args:
        kinds: the kinds of this process, by name.
        placer: knows the silos that are suitable for a grain, and chooses among them.
        package_bytes_max: the size of the largest package that is sent or taken.
    """

    def __init__(
        self,
        address: str,
        catalog: Catalog,
        targets: Targets,
        kinds: Mapping[str, GrainKind],
        placer: Placer,
        package_bytes_max: int,
    ) -> None:
        self._address = address
        self._catalog = catalog
        self._targets = targets
        self._kinds = kinds
        self._placer = placer
        self._package_bytes_max = package_bytes_max
        self._sending = asyncio.Semaphore(MIGRATIONS_MAX)
        self._taking = 0
        self.until_s = math.inf
        """The time of the loop after which no package is sent, because the silo stops."""
        targets.add(MigrationTarget(self))

    # -- leaving

    def may_move(self, activation: Activation, to: str | None) -> bool:
        """Return whether another silo is suitable for an activation.

        Raises ConfigError if `to` is given and is not suitable.
        """
        others = self._placer.find_others(activation.kind, activation.kind.version)
        if to is None:
            return bool(others)
        if to == self._address:
            return False
        if to not in others:
            known = ", ".join(others) or "none"
            raise ConfigError(
                f"{activation}: migrate_when_idle(to={show_text(repr(to))}): no other active silo "
                f"with this address can host the grain; suitable: {known}"
            )
        return True

    async def send(self, activation: Activation, to: str, pack: Callable[[], bytes | None]) -> str:
        """Send the package of an activation. Returns its new silo, or "" if it did not move.

        Args:
            to: the address of the new silo; empty: any suitable one.
            pack: makes the package when there is a place for it; None: that is impossible.
        """
        async with self._sending:
            box = activation.ensure_mailbox()
            version = max(activation.kind.version, box.wanted_version)  # a grain never moves down
            others = self._placer.find_others(activation.kind, version)
            if not others or asyncio.get_running_loop().time() >= self.until_s:
                return ""
            try:
                kind, key = activation.kind, activation.key
                silo = to if to in others else self._placer.choose_among(kind, key, others)
            except MillstreamError as error:
                log.warning("%s does not move: %s: %s", activation, type(error).__name__, error)
                return ""
            package = pack()
            if package is None or not self._fits(activation, package):
                return ""
            return silo if await self._is_taken(activation, silo, package) else ""

    def find_newer(self, kind: GrainKind, key: str, version: int) -> str:
        """Return another silo that hosts a version of the type or a later one, or ""."""
        others = self._placer.find_others(kind, version)
        try:
            return self._placer.choose_among(kind, key, others) if others else ""
        except MillstreamError as error:
            text = "%s/%s finds no silo with version %d: %s: %s"
            log.warning(text, kind.name, key, version, type(error).__name__, error)
            return ""

    def is_newer_changing(self, kind: GrainKind, version: int) -> bool:
        """Return whether a silo with a version of the type, or a later one, starts or stops."""
        return self._placer.is_changing(kind.name, version)

    def _fits(self, activation: Activation, package: bytes) -> bool:
        fits = len(package) <= self._package_bytes_max
        if not fits:
            text = "%s does not move: its package has %d bytes, migration_bytes_max is %d"
            log.warning(text, activation, len(package), self._package_bytes_max)
        return fits

    async def _is_taken(self, activation: Activation, silo: str, package: bytes) -> bool:
        try:
            return await self._targets.call(
                silo,
                MigrationTarget.target_name,
                MigrationTarget.accept,
                activation.kind.name,
                activation.key,
                self._address,
                activation.id,
                package,
            )
        except MillstreamError as error:
            text = "%s did not move to %s: %s: %s"
            log.info(text, activation, silo, type(error).__name__, error)
            return False

    # -- arriving

    async def take(self, name: str, key: str, former: Former, package: bytes) -> bool:
        """Continue an activation of another silo here. Returns False if that is impossible."""
        kind = self._kinds.get(name)
        is_full = self._taking >= MIGRATIONS_MAX or len(package) > self._package_bytes_max
        if kind is None or is_full:
            return False
        self._taking += 1
        try:
            return await self._catalog.receive(kind, key, former, package)
        finally:
            self._taking -= 1
