"""State, membership and reminders in SQLite files, for the silos of one machine.

Owns `SqliteStateStore`, `SqliteMembershipTable`, `SqliteReminderTable` and the schemas of their
files. Several processes may share a directory on a local disk, and network mounts are refused.
Reading starts at `storage.py`.
May import `runtime`.
"""

from millstream.runtime.database import WriterOptions
from millstream.runtime.extending import publish

from .membership import SqliteMembershipTable
from .reminders import SqliteReminderTable
from .storage import SqliteStateStore

__all__ = ["SqliteMembershipTable", "SqliteReminderTable", "SqliteStateStore", "WriterOptions"]

publish(__name__)
