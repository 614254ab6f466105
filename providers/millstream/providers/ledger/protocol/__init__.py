"""What a ledger is: entries, quorums, the record of a ledger, and the decisions of its writer and
of who recovers it. Pure: no I/O, no clock, no chance.
"""
