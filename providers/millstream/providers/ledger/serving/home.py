"""The directory of a silo's bookie, and the group of directories that it belongs to.

Owns: `Home`.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Home"]


class Home(NamedTuple):
    """A directory, as a silo has it.

    `path`: the path. `place`: the name of its directory group. New ledgers are spread over bookies
    of one group. The name is the path, where silos share it, and the template of the paths, where
    each silo has its own. `owner`: the name of the silo whose directory it is; "": it belongs to
    the silo with its lock.
    """

    path: str
    place: str
    owner: str = ""
