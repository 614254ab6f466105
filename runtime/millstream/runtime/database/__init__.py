"""SQLite files with one writing thread each, for stores that keep tables of their own.

The state store and membership table of `millstream.providers.sqlite`, and embedded priority queues,
are built on this package. It is separate because it loads SQLite.

Make a `DatabaseDirectory` for the place of the files. Write with the `Writer` that `open_writer`
returns, and read with a `Reader`. Both run functions of a connection in threads, and return
futures.

Owns the place of files (`directory`, `mounts`), opening and creating them (`schema`, `database`),
group commit in a thread (`writer`, `worker`), reads in another thread (`reader`), and waits for
other processes (`lock_wait`). It owns no table. Reading starts at `database.py`.

May import `runtime`.
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
