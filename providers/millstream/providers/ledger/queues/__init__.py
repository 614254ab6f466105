"""Topics as the queues of a stream provider.

Owns the adapter and its receiver, the parts of one silo put together (`node`), the topics that a
silo writes (`desk`), and the requests between silos about them (`target`, `writers`). Reading
starts at `adapter.py`.
May import `bookie`, `handle`, `metadata`, `protocol`, `recovery`, `runtime`, `scrubbing`,
`serving`, `streams` and `topic`.
"""
