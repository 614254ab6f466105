"""The programs' view of streams: namespaces, streams, handlers, subscriptions.

Owns handles of streams, the `@subscribe` mark and the handlers (`subscribe`, `handlers`), explicit
subscriptions and their rendezvous grain (`rendezvous`, `subscription_rows`), and streams read by a
program (`stream_events`). Reading starts at `stream.py`.
May import `contracts`, `failures`, `publishing` and `runtime`.
"""
