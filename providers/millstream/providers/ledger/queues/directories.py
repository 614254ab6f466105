"""The directories of a provider's bookies, as the user names them.

Owns: `Directories`. Pure. Not: the content of a directory (`bookie`), the silo that runs it
(`serving`). Invariant: with `{silo}` in the path each silo has a directory of its own. Without it,
all silos of a machine share one.
"""

from __future__ import annotations

import re
from pathlib import Path

from millstream.providers.ledger.protocol.quorum import Quorum
from millstream.providers.ledger.serving.home import Home
from millstream.runtime import ConfigError
from millstream.runtime.extending import show_text

__all__ = ["EMBEDDED", "REPLICATED", "Directories"]

SILO = "{silo}"
EMBEDDED = Quorum(1, 1, 1)
"""The quorum of one shared directory, which has one bookie."""
REPLICATED = Quorum(3, 3, 2)
"""The default quorum with a directory for each silo."""
NAME_BYTES_MAX = 255
"""The longest name of a file."""
NO_NAME = re.compile(r"[/\x00-\x1f\x7f]")


class Directories:
    """The directories of bookies: `data/ledger` for all silos, or `data/ledger/{silo}` for each.

    A relative path is resolved against the working directory when the object is made. Raises
    ConfigError if the argument is not a path, or has other braces than one `{silo}`.
    """

    def __init__(self, directory: object) -> None:
        is_path = (
            isinstance(directory, str | Path) and str(directory) and "\0" not in str(directory)
        )
        if not is_path:
            text = f"LedgerQueues(directory) is {show_text(repr(directory))}; it must be a path"
            raise ConfigError(text)
        self._given = str(Path(str(directory)))
        self._template = str(Path(self._given).resolve())
        self.is_replicated = SILO in self._given
        rest = self._given.replace(SILO, "", 1)
        if "{" in rest or "}" in rest:
            text = f"LedgerQueues(directory) is {show_text(self._given)}: braces may only hold"
            raise ConfigError(f"{text} {SILO}, the silo's name, and only once")

    @property
    def quorum(self) -> Quorum:
        """The quorum of ledgers, unless the settings have one."""
        return REPLICATED if self.is_replicated else EMBEDDED

    @property
    def agreement(self) -> str:
        """The fact about directories that all silos must have in common."""
        return self._given if self.is_replicated else "one for all silos of a machine"

    def check(self, quorum: Quorum | None) -> None:
        """Raise ConfigError for a quorum that one directory cannot have."""
        if quorum is not None and not self.is_replicated and quorum != EMBEDDED:
            text = f"LedgerOptions.settings.quorum is ({', '.join(map(str, quorum))})"
            raise ConfigError(
                f"{text}, but {show_text(self._given)} is one directory for all silos, with one "
                "bookie: omit the quorum, or give each silo its own directory: "
                f"{show_text(self._given)}/{SILO}"
            )

    def home(self, silo: str, name: str) -> Home:
        """Return the directory of a silo's bookie.

        Raises ConfigError if the path needs the silo's name, and the silo has none or the name
        cannot be a part of a path.

        Args:
            silo: the address of the silo.
            name: the name of the silo, or its address again if it has no name.
        """
        if not self.is_replicated:
            return Home(self._template, self._template)
        size = len(name.encode())
        if name == silo:
            text = f"LedgerQueues({show_text(repr(self._given))}): this silo has no name"
            raise ConfigError(f"{text}: give it a permanent name, Silo(name=...)")
        if NO_NAME.search(name) or name in {".", ".."} or size > NAME_BYTES_MAX:
            text = f"LedgerQueues({show_text(repr(self._given))}): the silo's name"
            raise ConfigError(
                f"{text}, {show_text(repr(name))}, cannot be part of a path: "
                f"write 1 to {NAME_BYTES_MAX} bytes, without / and control characters"
            )
        return Home(self._template.replace(SILO, name), self._given, name)
