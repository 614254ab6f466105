"""Suite `memory`: streams through the memory provider.

Owns the run, and the provider as the simulation observes it (`queues`). Reading starts at
`suite.py`.
May import `providers.memory`, `runtime`, `streams`, `suites.run` and `suites.streams`.
"""
