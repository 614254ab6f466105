"""Reminders of grains: stored schedules whose occurrences are delivered as calls.

Owns the occurrences of a schedule (`schedule`, pure), the stored form (`record`, pure), the
contract and the table in memory (`table`), the loaded rows (`agenda`, pure; `loader`), the buckets
of a silo (`ownership`), its deliveries (`deliveries`), and the reminders of an activation
(`grain_reminders`). Reading starts at `service.py`.

May import `calls`, `cluster`, `definition`, `runtime` and `turns`.
"""
