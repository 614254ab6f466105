"""The write side of a topic, in the hands of its owner.

Owns the take-over of a topic (`takeover`), the numbering and repetition of messages (`outbox`,
`producers`), the queue of appends, and the change from one ledger to the next (`topic_writer`).
Reading starts at `topic_writer.py`.
May import `metadata`, `protocol`, `runtime` and `topic`.
"""
