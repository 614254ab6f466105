"""The watchdog: it notices a standstill of a queue, and logs it.

Owns the times of a standstill (`standstill`), its reason in words (`waits`) and the log (`watch`).
Reading starts at `watch.py`.
May import `agent.delivery` and `runtime`.
"""
