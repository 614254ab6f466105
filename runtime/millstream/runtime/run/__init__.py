"""Programs and processes: local clusters, silo processes and what starts them.

Owns silos as programs, as child processes and as several in one process, and their start and end.
Reading starts at `serve.py`.
May import `client`, `cluster`, `definition`, `runtime`, `silo` and `wire`.
"""

from millstream.runtime.public_names import publish

from .launcher import SiloProcess, SiloProcesses
from .loops import loop_factory
from .program import RUN_OPTIONS, RunOption, run_program
from .serve import stop_signals

__all__ = [
    "RUN_OPTIONS",
    "RunOption",
    "SiloProcess",
    "SiloProcesses",
    "loop_factory",
    "run_program",
    "stop_signals",
]

publish(__name__)
