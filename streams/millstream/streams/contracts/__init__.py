"""The contracts of plug-ins: queues, mappers, balancers and tokens, and the suite that tests
adapters.

Owns the Protocols and values of a provider's adapter (`queue`, `message`, `token`, `capability`),
of mappers and balancers (`mapping`), and of buffers. Also owns the checks of answers that plug-ins
give (`answers`). Reading starts at `queue.py`.
May import `runtime`.
"""
