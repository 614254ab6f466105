"""Priority queues as programs use them: handles of queues, and leases.

Owns the handle, leases and polls, the calls to owners and shards (`calls`, `routed`), and retries
while the cluster does not answer (`asking`). Reading starts at `queue.py`.
May import `core`, `owner`, `runtime` and `store`.
"""
