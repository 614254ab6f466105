"""The filters of a subscription: its keys and its events.

Owns the patterns of keys (`key_pattern`), the filters of events (`event_filter`), and the filters
of grain classes that a silo knows (`hosted`, `known`). Reading starts at `event_filter.py`.
May import `api`, `contracts`, `failures` and `runtime`.
"""
