"""A managed topic: numbered messages in a sequence of ledgers, named cursors, retention."""
