"""A ledger as decisions: entries, quorums, the record of a ledger, its writer and its recovery.

Owns the form of an entry and of a record, the errors, and the cores `AppendCore` and
`RecoveryCore`. The package is pure: it has no I/O, no clock and no chance. Reading starts at
`append_core.py`.
May import `runtime`.
"""
