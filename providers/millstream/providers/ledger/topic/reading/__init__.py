"""Messages by number and time: from memory, and out of ledgers; in the owner's silo and others."""
