"""The grain's side of a delivery.

Owns the extension of a grain that takes deliveries, the run of a handler over the items that are
new (`run`, `fresh`), acknowledging by hand (`by_hand`), and the marks `@on_error` and `@on_gap`.
Reading starts at `extension.py`.
May import `api`, `contracts`, `failures` and `runtime`.
"""
