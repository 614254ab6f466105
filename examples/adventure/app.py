"""The silo: `millstream run app:make_silo`."""

from typing import Any

from dungeon import Dungeon, Monster, Player, Room

from millstream.runtime import Silo


def make_silo(**options: Any) -> Silo:
    """A silo of the cluster `adventure`. All its silos share the directory `data`."""
    shared = {
        "cluster": "adventure",
        "membership": "sqlite:data",
        "stores": {"default": "sqlite:data"},
    }
    return Silo(grains=[Dungeon, Room, Monster, Player], **(shared | options))
