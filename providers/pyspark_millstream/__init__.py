"""`format("millstream")` for PySpark: rows become events of Millstream streams, and events rows.

Spark finds `DefaultSource` by the `pyspark_` prefix of this module; nothing has to be registered.
Owns: the entry points that Spark calls. Not: options (`options`), rows (`rows`), sequences
(`tokens`), sending (`task_sender`, `staging`, `background`), tasks (`writer`), reading (`reader`,
`offsets`, `columns`). Invariant: importing this module costs no pandas and no pyarrow, and raises
nothing: an error here would break every Python source.

Reading starts at `writer.py`.
May import `runtime` and `streams`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from .reader import BatchReader, StreamReader
    from .writer import BatchWriter, StreamWriter

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Writes a DataFrame into the streams of one namespace, through the gateway port of silos, and
    reads what is in their queues.

    Options for writing: see `pyspark_millstream.options.WriteOptions`. A batch is seen whole, once
    Spark has committed it, or not at all, whatever fails. With `delivery=direct` rows are visible
    as they arrive, and a task that Spark runs again must see the same rows in the same order;
    `writer` tells the rules. Only appending works: `mode("append")` for `df.write`, output mode
    "append" for `df.writeStream`. Spark refuses "update" for sources in Python; `foreachBatch` with
    a `writer_id` does the same.

    Options for reading: see `pyspark_millstream.read_options.ReadOptions`. Rows are the fields of
    the items, by the user's schema or as the cluster knows them; else `key`, `payload`, `headers`,
    `token`, `time`.
    """

    @classmethod
    def name(cls) -> str:
        """The name in `format(...)`."""
        return "millstream"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """For `df.write`. Raises ValueError for an option that cannot work."""
        from .writer import BatchWriter, plan

        return BatchWriter(plan(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """For `df.writeStream`. Raises ValueError for an option that cannot work."""
        from .writer import StreamWriter, plan

        return StreamWriter(plan(self.options, schema, overwrite))

    def schema(self) -> str:
        """Of what is read, where the user gives none: the item's fields, if the cluster knows them.

        Raises ValueError for an option that cannot work, ConfigError: a field of the items has no
        type in Spark, and what else stands against reading.
        """
        from .columns import PLAIN_SCHEMA
        from .read_options import parse_read
        from .reader import ask_schema

        return ask_schema(parse_read(self.options, is_stream=True)) or PLAIN_SCHEMA

    def reader(self, schema: StructType) -> BatchReader:
        """For `spark.read`. Raises ValueError for an option that cannot work."""
        from .read_options import parse_read
        from .reader import BatchReader, NamespaceSource

        return BatchReader(NamespaceSource(parse_read(self.options, is_stream=False), schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        """For `spark.readStream`. Raises ValueError for an option that cannot work."""
        from .read_options import parse_read
        from .reader import NamespaceSource, StreamReader

        return StreamReader(NamespaceSource(parse_read(self.options, is_stream=True), schema))
