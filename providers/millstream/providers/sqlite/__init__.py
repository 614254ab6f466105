"""State and membership in SQLite files, for the silos of one machine.

Owns `SqliteStateStore`, `SqliteMembershipTable` and the schemas of their files. Several processes
may share a directory on a local disk, and network mounts are refused.
Reading starts at `storage.py`.
May import `runtime`.
"""

from millstream.runtime.database import WriterOptions
from millstream.runtime.extending import publish

from .membership import SqliteMembershipTable
from .storage import SqliteStateStore

__all__ = ["SqliteMembershipTable", "SqliteStateStore", "WriterOptions"]

publish(__name__)
