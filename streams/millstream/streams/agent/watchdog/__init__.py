"""The watchdog: notices and logs standstills of a queue.

Owns the work of a queue (`queue_work`), the times of standstills (`standstill`), their reasons in
words (`waits`), and the log (`watch`).

Reading starts at `watch.py`.

May import `agent`, `agent.audience`, `agent.delivery`, `agent.reading`, `contracts` and `runtime`.
"""
