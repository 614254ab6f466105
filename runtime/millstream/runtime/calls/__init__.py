"""Calls: from a reference to a turn, and from the wire to a turn.

Owns references and their generated stubs, the caller's and the callee's side of a call, relays of
gateways, the search for a location, and system targets. Reading starts at `engine.py`.

May import `codec`, `definition`, `runtime`, `turns` and `wire`.
"""
