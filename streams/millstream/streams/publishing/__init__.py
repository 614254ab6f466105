"""Publishing: from a call of `publish` to the queue.

Owns the size of messages (`split`), the queue of unsent messages and its driver (`send_queue`,
`sender`), publishing from outside (`ingest`, `numbered`), and outboxes of states. Reading starts at
`silo_publisher.py`.
May import `contracts` and `runtime`.
"""
