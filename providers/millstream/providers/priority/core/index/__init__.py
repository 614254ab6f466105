"""The most urgent pending message: of all, of a filter, of the values that are free.

Owns the order of pending messages (`plain`, `grouped`), filters over it, the messages that became
available for waiters (`available`), and the times at which something falls due (`timers`). Reading
starts at `filters.py`.
May import `core`.
"""
