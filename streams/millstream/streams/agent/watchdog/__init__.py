"""The watchdog: it notices a standstill of a queue, and logs it.

Owns the work of a queue (`queue_work`), the times of a standstill (`standstill`), its reason in
words (`waits`) and the log (`watch`). Reading starts at `watch.py`.
May import `agent`, `agent.audience`, `agent.delivery`, `agent.reading`, `contracts` and `runtime`.
"""
