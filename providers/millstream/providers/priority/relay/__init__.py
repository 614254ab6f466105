"""The stream of changes of messages.

Owns the form of a change (`change`) and the relay from the outboxes of a store to a stream provider
(`relay`). Reading starts at `relay.py`.
May import `core`, `owner`, `runtime`, `store` and `streams`.
"""
