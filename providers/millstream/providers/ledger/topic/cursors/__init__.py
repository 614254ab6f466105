"""Named cursors: the acknowledged messages of a subscription, stored.

Owns one cursor (`cursor`), the set of acknowledged messages (`acknowledged`), all cursors of a
topic with the limit of their backlog (`cursors`), the decision which messages may be deleted
(`retention`) and their deletion (`trimmer`). Reading starts at `cursors.py`.
May import `metadata`, `runtime`, `topic`, `topic.appending` and `topic.reading`.
"""
