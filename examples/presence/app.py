"""The silo: `millstream run app:make_silo`."""

from typing import Any

from games import Game, Player, Presence

from millstream.runtime import Silo


def make_silo(**options: Any) -> Silo:
    """A silo of the cluster `presence`. All its silos share the directory `data`."""
    shared = {"cluster": "presence", "membership": "sqlite:data"}
    return Silo(grains=[Presence, Game, Player], **(shared | options))
