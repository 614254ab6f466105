"""Spark for Millstream: a session that finds Java and `format("millstream")`.

Owns the start of PySpark, with settings that suit a pipeline on one machine. The data source is the
top-level module `pyspark_millstream`, where Spark looks for it.
Reading starts at `session.py`.
May import `pyspark_millstream` and `runtime`.
"""

from __future__ import annotations

from .session import session

__all__ = ["session"]
