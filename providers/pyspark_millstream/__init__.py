"""`format("millstream")` for PySpark: writes rows as events of streams, and reads events as rows.

Spark finds `DefaultSource` by the `pyspark_` prefix of this module, so nothing has to be
registered. Owns the entry points that Spark calls. Importing this module loads neither pandas nor
pyarrow and raises nothing, because an error here would break every Python data source.

| module | contents |
|---|---|
| `options`, `read_options` | options for writing and reading |
| `rows`, `tokens` | messages of rows, and their sequences |
| `task_sender`, `staging`, `background` | sending |
| `writer` | tasks that write |
| `reader`, `offsets`, `columns` | reading |

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
    """The Spark data source `format("millstream")`: writes and reads the streams of one namespace.

    Rows go to the gateways of silos, and the silos need no preparation. Spark finds this class by
    itself; do not create it.

    Writing: the options are those of `pyspark_millstream.options.WriteOptions`. By default a batch
    becomes visible as a whole, after Spark has committed it, or not at all. With `delivery=direct`,
    rows become visible as they arrive. Then a task that Spark repeats must see the same rows in the
    same order. Only appending works: `mode("append")` for `df.write`, and the output mode `append`
    for `df.writeStream`. Spark refuses the mode `update` for sources in Python; use `foreachBatch`
    with a `writer_id`.

    Reading: the options are those of `pyspark_millstream.read_options.ReadOptions`. The columns are
    the fields of the items, by your schema or as the cluster knows them. Otherwise they are `key`,
    `payload`, `headers`, `token` and `time`.

    ```python
    rows.write.format("millstream").mode("append").options(
        gateways="127.0.0.1:7700", namespace="arrivals", key_column="dest"
    ).save()
    ```
    """

    @classmethod
    def name(cls) -> str:
        """Return the name in `format(...)`."""
        return "millstream"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of `df.write`.

        Args:
            schema: The columns of the DataFrame.
            overwrite: True for a mode other than "append", which is refused.

        Raises:
            ValueError: An option is not valid.
        """
        from .writer import BatchWriter, plan

        return BatchWriter(plan(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return the writer of `df.writeStream`.

        Args:
            schema: The columns of the DataFrame.
            overwrite: True for an output mode other than "append", which is refused.

        Raises:
            ValueError: An option is not valid.
        """
        from .writer import StreamWriter, plan

        return StreamWriter(plan(self.options, schema, overwrite))

    def schema(self) -> str:
        """Return the columns of a read without a schema.

        They are the fields of the items, if the cluster knows them.

        Raises:
            ValueError: An option is not valid.
            ConfigError: A field of the items has no type in Spark, or the provider cannot be read
                again.
            SiloUnavailable: No gateway answered within `patience_s`.
        """
        from .columns import PLAIN_SCHEMA
        from .read_options import parse_read
        from .reader import ask_schema

        return ask_schema(parse_read(self.options, is_stream=True)) or PLAIN_SCHEMA

    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader of `spark.read`.

        Args:
            schema: The columns to read.

        Raises:
            ValueError: An option is not valid.
        """
        from .read_options import parse_read
        from .reader import BatchReader, NamespaceSource

        return BatchReader(NamespaceSource(parse_read(self.options, is_stream=False), schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        """Return the reader of `spark.readStream`.

        Args:
            schema: The columns to read.

        Raises:
            ValueError: An option is not valid.
        """
        from .read_options import parse_read
        from .reader import NamespaceSource, StreamReader

        return StreamReader(NamespaceSource(parse_read(self.options, is_stream=True), schema))
