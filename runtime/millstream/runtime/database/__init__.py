"""SQLite files with one writing thread each: for stores that keep their own tables in them.

Owns the place of files (`directory`, `mounts`), opening and making them (`schema`, `database`),
group commit in a thread (`writer`, `worker`), reads in another (`reader`), and waits for other
processes (`lock_wait`); no table. A seam of its own, since it loads SQLite. Reading starts at
`database.py`.
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
