"""The silo: `millstream run app:make_silo`."""

from typing import Any

from board import Board
from matches import Match

from millstream.providers.ledger import LedgerQueues
from millstream.runtime import Silo
from millstream.streams import PersistentStreams


def make_silo(**options: Any) -> Silo:
    """A silo of the cluster `scores`. All its silos share the directory `data`."""
    shared = {
        "cluster": "scores",
        "membership": "sqlite:data",
        "stores": {"default": "sqlite:data"},
    }
    streams = {"default": PersistentStreams(LedgerQueues("data/ledger"))}
    return Silo(grains=[Match, Board], streams=streams, **(shared | options))
