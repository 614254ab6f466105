"""The silo: `millstream run app:make_silo`."""

from typing import Any

from devices import Device, Notifier

from millstream.runtime import Silo


def make_silo(**options: Any) -> Silo:
    """A silo of the cluster `gps`. All its silos share the directory `data`."""
    shared = {"cluster": "gps", "membership": "sqlite:data"}
    return Silo(grains=[Device, Notifier], **(shared | options))
