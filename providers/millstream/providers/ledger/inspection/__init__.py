"""Reading and repairing ledgers from outside of a cluster, for programs such as `millstream
ledger`.

`source_in(store, cluster)` opens the rows of a cluster. `file_ledgers` reads entries from
directories, and `verify` checks one directory. `open_repair_target` runs the bookies of a machine
while no silo does.

Owns the public names for such programs: all rows of a cluster (`content`) and the directories of
one machine (`directories`). Reading starts at `content.py`.
May import `alone`, `bookie`, `handle`, `metadata`, `protocol`, `queues`, `recovery`, `runtime`,
`scrubbing`, `serving` and `topic`.
"""

from millstream.providers.ledger.alone.message import CONTENT as TOPIC_CONTENT
from millstream.providers.ledger.bookie.form.identity import IDENTITY
from millstream.providers.ledger.bookie.offline.verification import Verified, verify
from millstream.providers.ledger.handle.ledgers import BookieLedgers
from millstream.providers.ledger.metadata.bookies import BookieRecord
from millstream.providers.ledger.metadata.drain_marks import mark_draining
from millstream.providers.ledger.protocol.entry import Entry
from millstream.providers.ledger.protocol.errors import EntriesGivenUp, EntryDamaged, LedgerError
from millstream.providers.ledger.protocol.record import ENDLESS, LedgerRecord, LedgerState
from millstream.providers.ledger.queues.form import CONTENT as STREAM_CONTENT
from millstream.providers.ledger.recovery.needs import bookies_of
from millstream.providers.ledger.recovery.report import RecoveryReport
from millstream.providers.ledger.scrubbing.report import ScrubReport
from millstream.providers.ledger.serving.repair_target import (
    EndAnswer,
    LossAnswer,
    LostPart,
    RepairTarget,
)
from millstream.providers.ledger.topic.cursors.cursor import CursorRecord
from millstream.providers.ledger.topic.form import EntryKind, StoredMessage, head_of
from millstream.providers.ledger.topic.record import TopicRecord
from millstream.runtime.extending import publish

from .content import Content, Source, scopes_in, source_in
from .directories import file_ledgers, open_repair_target, path_of, places_of, topic_reader

__all__ = [
    "ENDLESS",
    "IDENTITY",
    "STREAM_CONTENT",
    "TOPIC_CONTENT",
    "BookieLedgers",
    "BookieRecord",
    "Content",
    "CursorRecord",
    "EndAnswer",
    "EntriesGivenUp",
    "Entry",
    "EntryDamaged",
    "EntryKind",
    "LedgerError",
    "LedgerRecord",
    "LedgerState",
    "LossAnswer",
    "LostPart",
    "RecoveryReport",
    "RepairTarget",
    "ScrubReport",
    "Source",
    "StoredMessage",
    "TopicRecord",
    "Verified",
    "bookies_of",
    "file_ledgers",
    "head_of",
    "mark_draining",
    "open_repair_target",
    "path_of",
    "places_of",
    "scopes_in",
    "source_in",
    "topic_reader",
    "verify",
]

publish(__name__)
