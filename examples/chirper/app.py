"""The silo: `millstream run app:make_silo`."""

from typing import Any

from accounts import Account

from millstream.runtime import Silo


def make_silo(**options: Any) -> Silo:
    """A silo of the cluster `chirper`. All its silos share the directory `data`."""
    shared = {
        "cluster": "chirper",
        "membership": "sqlite:data",
        "stores": {"default": "sqlite:data"},
    }
    return Silo(grains=[Account], **(shared | options))
