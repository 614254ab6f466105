"""Broadcast channels: an event reaches the grains that listen now, and is not stored.

Owns the channel, the `@listen` mark, the calls to the listeners of one silo (`fan_out`), and the
entry for clients (`target`). Reading starts at `channel.py`.
May import `api` and `runtime`.
"""
