"""The parts of a silo put together.

Owns the silo and the order in which its parts start and stop, the check of its arguments, the
services that it gives to parts (`services`), the contract of a part (`part`), and its clients
(`visitors`). Reading starts at `silo.py`.
May import `calls`, `cluster`, `codec`, `definition`, `disk`, `runtime`, `turns` and `wire`.
"""
