"""Values as bytes: annotations, rules, isolation, and errors as values.

Owns the codec of an annotation and of an argument list, the types that may be sent, the values that
need no copy (`immutable`), and errors across the wire (`failures`). Reading starts at `codec.py`.
May import `runtime`.
"""
