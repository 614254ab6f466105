"""A stream provider, put together from its parts.

Owns `PersistentStreams` in one silo: the queues that the silo reads, the known subscriptions,
reports, redrives, the change of the number of queues, and the system target.

Reading starts at `provider.py`.

May import `agent`, `api`, `consumer`, `contracts`, `failures`, `inbox`, `insight`, `ownership`,
`publishing`, `rewinding`, `runtime` and `staging`.
"""
