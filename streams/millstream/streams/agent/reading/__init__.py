"""Reading one queue: the decisions, and the calls to its receiver.

Owns the core of reading (`reader`, `steps`) and its driver (`driver`), the contained calls to an
adapter (`contained_receiver`), settlement and leases, and rereading for lagging subscriptions
(`catch_up`).

Reading starts at `reader.py`.

May import `agent`, `agent.cache`, `agent.delivery`, `contracts` and `runtime`.
"""
