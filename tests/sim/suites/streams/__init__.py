"""Suite `streams`, and the traffic, handlers and run that other suites with streams share.

Owns the run, the grains that handle events, the publishers, and a durable queue service
(`log_queues`). Reading starts at `suite.py`.
May import `balancers`, `runtime`, `streams` and `suites.run`.
"""
