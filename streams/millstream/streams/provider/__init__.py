"""A stream provider: its parts put together.

Owns `PersistentStreams` in one silo: the queues that the silo reads, the subscriptions that it
knows, reports, redrives, the change of the number of queues, and its system target. Reading starts
at `provider.py`.
May import `agent`, `api`, `consumer`, `contracts`, `failures`, `inbox`, `insight`, `ownership`,
`publishing`, `rewinding`, `runtime` and `staging`.
"""
