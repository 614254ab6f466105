"""Scrubbing: each bookie reads its whole directory, and repairs damaged and missing replicas from
other bookies.

Owns the scrubber, the entries that need a repair (`docket`, `wanted`), the repair (`repairer`) and
the report. Reading starts at `scrubber.py`.
May import `bookie`, `handle`, `metadata`, `protocol`, `recovery` and `runtime`.
"""
