"""Programs and processes: local clusters, silo processes and what starts them."""

from .launcher import SiloProcess, SiloProcesses
from .loops import loop_factory

__all__ = ["SiloProcess", "SiloProcesses", "loop_factory"]
