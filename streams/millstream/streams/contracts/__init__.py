"""The contracts of plug-ins: queues, mappers, balancers, tokens, and the suite that judges them.

Owns the Protocols and values of a provider's adapter (`queue`, `message`, `token`, `capability`),
of a mapper and a balancer (`mapping`), of buffers, and the checks of what a plug-in answers
(`answers`). Reading starts at `queue.py`.
May import `runtime`.
"""
