"""Membership, and the locations of grains.

Owns this silo as a member, the detection of failures, the membership table with its views, and the
choice of the silo for a call. Reading starts at `member.py`.

- `member`, `joiner`, `heart`: this silo as a member.
- `prober`, `votes`: the detection of failures.
- `table`: the membership table and its views.
- `router`, `placement`: the choice of the silo for a call.
- `clients`, `client_leases`, `client_search`: clients with observers, and the way to them.

May import `calls`, `definition`, `runtime`, `turns` and `wire`.
"""
