"""SQLite files with one writing thread each: for stores that keep their own tables in them.

`directory` and `mounts` say where files may be, `schema` and `database` make and open one, `writer`
commits in groups in its thread (`worker`), `reader` reads in another, `lock_wait` waits for other
processes. Not: any table (`providers`). A seam of its own, since it loads SQLite.
"""

from millstream.runtime.public_names import publish

from .database import Database, open_database
from .directory import DatabaseDirectory, device_and_inode
from .reader import Connect, Reader
from .schema import Schema
from .writer import Writer, WriterOptions, open_writer

__all__ = [
    "Connect",
    "Database",
    "DatabaseDirectory",
    "Reader",
    "Schema",
    "Writer",
    "WriterOptions",
    "device_and_inode",
    "open_database",
    "open_writer",
]

publish(__name__)
