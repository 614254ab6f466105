"""Values as bytes: annotations, rules, isolation, and errors as values.

Owns the codec of an annotation and of an argument list, and the types that may be sent. It also
owns the decision which values need no copy (`immutable`), and errors across the wire (`failures`).
Reading starts at `codec.py`.

May import `runtime`.
"""
