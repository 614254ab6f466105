"""The inboxes of consumers outside the cluster.

Owns the grain that represents a consumer outside (`inbox`), and the events that the consumer has
not acknowledged (`pending`). Reading starts at `inbox.py`.
May import `api`, `consumer`, `contracts` and `runtime`.
"""
