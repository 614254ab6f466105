"""`format("millstream")` for PySpark: rows of a DataFrame become events of Millstream streams.

Spark finds `DefaultSource` by the `pyspark_` prefix of this module; nothing has to be registered.
Owns: the entry points that Spark calls. Not: options (`options`), rows (`rows`), sequences
(`tokens`), sending (`sending`, `staging`, `background`), tasks (`writer`). Invariant: importing
this module costs no pandas and no pyarrow, and raises nothing: an error here would break every
Python source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from .writer import BatchWriter, StreamWriter

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Writes a DataFrame into the streams of one namespace, through the gateway port of silos.

    Options: see `pyspark_millstream.options.WriteOptions`. A batch is seen whole, once Spark has
    committed it, or not at all, whatever fails. With `delivery=direct` rows are visible as they
    arrive, and a task that Spark runs again must see the same rows in the same order; `writer`
    tells the rules. Only appending works: `mode("append")` for `df.write`, output mode "append" or
    "update" for `df.writeStream`.
    """

    @classmethod
    def name(cls) -> str:
        """The name in `format(...)`."""
        return "millstream"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """For `df.write`. Raises ValueError for an option that cannot work."""
        from .writer import BatchWriter, planned

        return BatchWriter(planned(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """For `df.writeStream`. Raises ValueError for an option that cannot work."""
        from .writer import StreamWriter, planned

        return StreamWriter(planned(self.options, schema, overwrite))

    def schema(self) -> NoReturn:
        """Reading is refused: Spark asks for the schema first."""
        raise NotImplementedError(
            'format("millstream") only writes: reading streams is not available in this version'
        )
