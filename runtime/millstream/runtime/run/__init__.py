"""Programs and processes: silos as programs, as child processes, and as local clusters.

`SiloProcess` and `SiloProcesses` run silos as child processes. `run_program` is the command
`millstream run`. `loop_factory` gives the event loop that these programs use.

Owns the start and the end of silos as programs, as child processes, and as several silos in one
process. Reading starts at `serve.py`.
May import `client`, `cluster`, `definition`, `reminders`, `runtime`, `silo`, `turns` and `wire`.
"""

from millstream.runtime.public_names import publish

from .json_log import JsonFormatter
from .launcher import SiloProcess, SiloProcesses
from .loops import loop_factory
from .program import RUN_OPTIONS, RunOption, run_program
from .serve import stop_signals

__all__ = [
    "RUN_OPTIONS",
    "JsonFormatter",
    "RunOption",
    "SiloProcess",
    "SiloProcesses",
    "loop_factory",
    "run_program",
    "stop_signals",
]

publish(__name__)
