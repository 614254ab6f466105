"""Which directory a silo's bookie has, and which others are its like.

Owns: `Home`.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Home"]


class Home(NamedTuple):
    """A directory, as a silo has it.

    `path`: where it is. `place`: new ledgers are spread over bookies of one place: the path, where
    silos share it; the template of the paths, where each silo has its own. `owner`: the name of the
    silo whose directory it is; "": whoever has its lock.
    """

    path: str
    place: str
    owner: str = ""
