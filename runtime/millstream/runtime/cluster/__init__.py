"""Membership and location: the table, members, probes, the ring, the directory, the router.

Owns this silo as a member (`member`, `joiner`, `heart`), the detection of failures (`prober`,
`votes`), the table and its views (`table`), and the decision where a call goes (`router`,
`placement`). Reading starts at `member.py`.
May import `calls`, `definition`, `runtime`, `turns` and `wire`.
"""
