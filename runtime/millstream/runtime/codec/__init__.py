"""Values as bytes: hints, rules, isolation, and errors as values."""
