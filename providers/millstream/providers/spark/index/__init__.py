"""The index of priority queues: the present state and the history of their messages.

A Spark query reads the changes that `PriorityQueues(store, changes=...)` publishes, and stores each
change once in SQLite or PostgreSQL. `PriorityIndex` answers questions. The guide is
docs/guides/index_pipeline.md.

Owns the Spark query, the tables and their databases, the questions (`queries`), and the check that
an index is complete (`verify`).
Reading starts at `job.py`.
May import `pyspark_millstream` and `runtime`.
"""

from millstream.runtime.extending import publish

from .changes import ChangeRow
from .job import start_index
from .options import IndexOptions
from .queries import PriorityIndex, ProcessingErrors, StateTime
from .tables import Applied
from .verify import Difference, Finding, differences
from .writer import IndexWriter

__all__ = [
    "Applied",
    "ChangeRow",
    "Difference",
    "Finding",
    "IndexOptions",
    "IndexWriter",
    "PriorityIndex",
    "ProcessingErrors",
    "StateTime",
    "differences",
    "start_index",
]

publish(__name__)
