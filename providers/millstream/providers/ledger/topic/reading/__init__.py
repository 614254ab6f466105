"""The read side of a topic: messages by number and by time.

Owns reading from ledgers (`pages`, `index`), the newest messages in memory (`tail`), reading by the
owner (`owner_reader`) and in other silos (`reader`). Reading starts at `owner_reader.py`.
May import `metadata`, `protocol`, `runtime`, `topic` and `topic.appending`.
"""
