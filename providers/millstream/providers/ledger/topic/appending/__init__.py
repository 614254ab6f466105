"""The owner's side of a topic: taking it over, numbering, sending, moving from ledger to ledger."""
