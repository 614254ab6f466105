"""Named cursors: the stored acknowledgements of subscriptions.

Owns one cursor (`cursor`), the set of acknowledged messages (`acknowledged`), and all cursors of a
topic with the limit of their backlog (`cursors`). It also owns the decision which messages may be
deleted (`retention`), and their deletion (`trimmer`). Reading starts at `cursors.py`.
May import `metadata`, `runtime`, `topic`, `topic.appending` and `topic.reading`.
"""
