"""A silo, put together from its parts.

Owns the silo and the order in which its parts start and stop. It also owns the check of a silo's
arguments, the services for parts (`services`), the contract of a part (`part`), its reminders
(`reminders`), its metrics and health (`metrics`), and the connections of clients (`visitors`).
Reading starts at `silo.py`.
May import `calls`, `cluster`, `codec`, `definition`, `disk`, `metrics`, `reminders`, `runtime`,
`turns` and `wire`.
"""
