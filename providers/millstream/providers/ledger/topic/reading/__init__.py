"""The read side of a topic: messages by number and by time.

Owns reading out of ledgers (`pages`, `index`), the newest messages in memory (`tail`), and reading
in other silos than the owner's (`reader`). Reading starts at `pages.py`.
May import `metadata`, `protocol`, `runtime`, `topic` and `topic.appending`.
"""
