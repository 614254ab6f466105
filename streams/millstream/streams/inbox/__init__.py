"""The inboxes of consumers outside the cluster.

Owns the grain that stands for a consumer outside (`inbox`), and the events that it has not
acknowledged (`pending`). Reading starts at `inbox.py`.
May import `api`, `consumer`, `contracts` and `runtime`.
"""
