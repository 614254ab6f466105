"""Broadcast channels: what is published reaches whoever listens now, and is kept nowhere."""
