"""The most urgent pending message: of all, of a filter, and of the values that are free.

Owns the order of pending messages (`plain`, `grouped`), the filters (`filters`), the messages that
became available for waiting callers (`available`), and due times (`timers`). Reading starts at
`filters.py`.
May import `core`.
"""
