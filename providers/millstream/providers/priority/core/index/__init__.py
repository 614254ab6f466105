"""Which pending message is the most urgent: of all, of a filter, of values that are free."""
