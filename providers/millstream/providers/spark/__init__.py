"""Spark for Millstream: a session that finds Java and `format("millstream")`.

Owns: starting PySpark with the settings that suit a Millstream pipeline on one machine. Not: the
data source itself; that is the top-level module `pyspark_millstream`, where Spark looks for it.
"""

from __future__ import annotations

from .session import session

__all__ = ["session"]
