"""Bytes between two processes: framing, messages, links, connections."""
