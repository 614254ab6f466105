"""The write side of a topic, in the hands of its owner.

Owns the take-over of a topic (`takeover`), the numbering and repetition of messages (`outbox`,
`producers`), appends that wait (`append_queue`) and their sending (`topic_writer`), the ledger that
is sent to and the change to the next one (`current_ledger`). Reading starts at `topic_writer.py`.
May import `metadata`, `protocol`, `runtime` and `topic`.
"""
