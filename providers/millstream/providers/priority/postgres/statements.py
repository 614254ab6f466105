"""The SQL statements of priority queues in one schema of PostgreSQL. Pure.

Each statement that changes a queue names its owner by number, epoch, nonce and number of commits.
"""

from __future__ import annotations

__all__ = ["Statements"]

HEAD = (
    "number, epoch, settings_version, settings, sequence, leases, layout, now_ms, ahead_ms,"
    " next_due_ms"
)
OWNED = "number = %s AND epoch = %s AND nonce = %s AND commits = %s"


class Statements:
    """The statements for one schema."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._make_owning()
        self._make_dropping()
        self._make_changes()
        self._make_reads()

    def _table(self, name: str) -> str:
        return f"{self._schema}.priority_{name}"

    def _make_owning(self) -> None:
        schema, queue = self._schema, self._table("queue")
        self.create = (
            f"INSERT INTO {queue} AS q (name, epoch, nonce, commits, settings_version, settings,"
            " sequence, leases, layout, now_ms, ahead_ms)"
            " VALUES (%s, 1, %s, 0, 1, %s, 0, 0, 0, %s, 0)"
            " ON CONFLICT (name) DO UPDATE SET epoch = q.epoch + 1, nonce = excluded.nonce,"
            " commits = 0, settings = coalesce(q.settings, excluded.settings),"
            " settings_version = CASE WHEN q.settings IS NULL THEN 1 ELSE q.settings_version END,"
            " now_ms = CASE WHEN q.settings IS NULL THEN excluded.now_ms ELSE q.now_ms END"
            f" RETURNING {HEAD}"
        )
        self.acquire = (
            f"UPDATE {queue} SET epoch = epoch + 1, nonce = %s, commits = 0"
            f" WHERE name = %s AND settings IS NOT NULL RETURNING {HEAD}"
        )
        self.confirm = f"SELECT FROM {queue} WHERE {OWNED}"
        self.find_mark = f"SELECT epoch, nonce, commits FROM {queue} WHERE name = %s"
        self.set_due = f"UPDATE {queue} SET commits = commits + 1, next_due_ms = %s WHERE {OWNED}"
        self.set_head = (
            f"UPDATE {queue} SET commits = commits + 1, next_due_ms = %s, sequence = %s,"
            f" leases = %s, layout = %s, now_ms = %s, ahead_ms = %s WHERE {OWNED}"
        )
        self.set_settings = (
            f"UPDATE {queue} SET settings_version = %s, settings = %s WHERE number = %s"
        )
        self.delete_queue = (
            f"UPDATE {queue} SET number = nextval('{schema}.priority_numbers'), settings = NULL,"
            " settings_version = 0, commits = commits + 1, now_ms = 0, ahead_ms = 0,"
            f" next_due_ms = NULL WHERE {OWNED}"
        )

    def _make_dropping(self) -> None:
        dropped, message = self._table("dropped"), self._table("message")
        session, answer = self._table("session"), self._table("answer")
        self.put_dropped = f"INSERT INTO {dropped} VALUES (%s)"
        self.find_dropped = f"SELECT number FROM {dropped} ORDER BY number LIMIT 1"
        self.drop_messages = (
            f"DELETE FROM {message} WHERE queue = %s AND sequence IN"
            f" (SELECT sequence FROM {message} WHERE queue = %s LIMIT %s)"
        )
        self.drop_rest = tuple(
            f"DELETE FROM {table} WHERE {column} = %s"
            for table, column in ((session, "queue"), (answer, "queue"), (dropped, "number"))
        )

    def _make_changes(self) -> None:
        message, session = self._table("message"), self._table("session")
        answer, event, lane = self._table("answer"), self._table("event"), self._table("lane")
        self.delete_messages = f"DELETE FROM {message} WHERE queue = %s AND sequence = ANY(%s)"
        self.insert_messages = (
            f"INSERT INTO {message} (queue, sequence, body, payload, state) SELECT %s, * FROM"
            " unnest(%b::bigint[], %b::bytea[], %b::bytea[], %b::bytea[])"
        )
        self.update_messages = (
            f"UPDATE {message} AS m SET state = u.state,"
            " payload = CASE WHEN u.freed THEN NULL ELSE m.payload END"
            " FROM unnest(%b::bigint[], %b::bytea[], %b::boolean[]) AS u (sequence, state, freed)"
            " WHERE m.queue = %s AND m.sequence = u.sequence"
        )
        self.delete_sessions = f"DELETE FROM {session} WHERE queue = %s AND session = ANY(%b)"
        self.delete_answers = (
            f"DELETE FROM {answer} AS a USING unnest(%b::bytea[], %b::bigint[])"
            " AS u (session, number)"
            " WHERE a.queue = %s AND a.session = u.session AND a.number = u.number"
        )
        self.put_sessions = (
            f"INSERT INTO {session} SELECT %s, * FROM unnest(%b::bytea[], %b::bigint[],"
            " %b::bigint[]) ON CONFLICT (queue, session) DO UPDATE"
            " SET acknowledged = excluded.acknowledged, used_ms = excluded.used_ms"
        )
        self.put_answers = (
            f"INSERT INTO {answer} SELECT %s, * FROM unnest(%b::bytea[], %b::bigint[],"
            " %b::bytea[]) ON CONFLICT (queue, session, number) DO UPDATE"
            " SET answer = excluded.answer"
        )
        self.take_positions = (
            f"UPDATE {lane} SET position = position + %s, events = events + %s WHERE lane = %s"
            " RETURNING position, events"
        )
        self.put_events = f"INSERT INTO {event} SELECT %s, * FROM unnest(%b::bigint[], %b::bytea[])"

    def _make_reads(self) -> None:
        queue, message = self._table("queue"), self._table("message")
        session, answer = self._table("session"), self._table("answer")
        event, lane = self._table("event"), self._table("lane")
        self.find_messages = (
            f"SELECT sequence, body, payload, state FROM {message}"
            " WHERE queue = %s AND sequence > %s ORDER BY sequence LIMIT %s"
        )
        self.find_sessions = (
            f"SELECT session, acknowledged, used_ms FROM {session} WHERE queue = %s"
        )
        self.find_answers = f"SELECT session, number, answer FROM {answer} WHERE queue = %s"
        self.find_due = (
            f"SELECT name FROM {queue} WHERE next_due_ms <= %s AND name > %s ORDER BY name LIMIT %s"
        )
        self.find_queues = (
            f"SELECT name FROM {queue} WHERE settings IS NOT NULL AND name >= %s AND name > %s"
            " AND (%s::bytea IS NULL OR name < %s::bytea) ORDER BY name LIMIT %s"
        )
        self.find_events = (
            f"SELECT position, event FROM {event} WHERE outbox = %s AND position > %s"
            " ORDER BY position LIMIT %s"
        )
        self.find_lane = f"SELECT name, events FROM {lane} WHERE lane = %s"
        self.forget_events = (
            f"WITH gone AS (DELETE FROM {event} WHERE outbox = %s AND position IN"
            f" (SELECT position FROM {event} WHERE outbox = %s AND position <= %s"
            " ORDER BY position LIMIT %s) RETURNING position)"
            f" UPDATE {lane} SET events = events - (SELECT count(*) FROM gone) WHERE lane = %s"
            " RETURNING events, (SELECT count(*) FROM gone)"
        )
