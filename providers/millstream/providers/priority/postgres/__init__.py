"""Priority queues in a PostgreSQL database, for the silos of several machines.

Owns `PostgresStore`, its commits and the stored form of its rows. The tables are in the schema of
`millstream.runtime.postgres`, which also has the connections. Reading starts at `store.py`.
May import `core`, `runtime` and `store`.
"""

from millstream.runtime.extending import publish

from .store import PostgresStore

__all__ = ["PostgresStore"]

publish(__name__)
