"""The transitions of messages: into the queue, out to a worker, back, or to an end.

Owns the decisions of enqueue (`entering`), of dequeue (`taking`), and of leases that are used, lost
or given back (`leasing`). Reading starts at `entering.py`.
May import `core`, `core.index` and `runtime`.
"""
