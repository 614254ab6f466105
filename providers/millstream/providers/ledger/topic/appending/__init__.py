"""The write side of a topic, which only its owner uses.

Owns the take-over of a topic (`takeover`), numbers and the recognition of repeats (`outbox`,
`producers`), and waiting appends (`append_queue`) with their sending (`topic_writer`). It also owns
the ledger that is written, and the change to the next one (`current_ledger`). Reading starts at
`topic_writer.py`.
May import `metadata`, `protocol`, `runtime` and `topic`.
"""
