"""Requests and answers of the HTTP API as types.

Owns the bodies of requests (`bodies`) and answers (`answers`), strict decoding of texts (`strict`),
and errors as problem documents (`problems`). Reading starts at `bodies.py`.
May import `core`, `owner`, `runtime` and `surface`.
"""
