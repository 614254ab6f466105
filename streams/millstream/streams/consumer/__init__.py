"""The grain's side of a delivery.

Owns the grain extension that receives deliveries, the run of a handler over new items, manual
acknowledgement, and the marks `@on_error` and `@on_gap`.

Reading starts at `extension.py`.

May import `api`, `contracts`, `failures` and `runtime`.
"""
