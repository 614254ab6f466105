"""Programs and processes: local clusters, silo processes and what starts them."""

from .launcher import SiloProcess, SiloProcesses
from .loops import loop_factory
from .program import RUN_OPTIONS, RunOption, run_program

__all__ = [
    "RUN_OPTIONS",
    "RunOption",
    "SiloProcess",
    "SiloProcesses",
    "loop_factory",
    "run_program",
]
