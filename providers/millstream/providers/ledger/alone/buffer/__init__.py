"""Durable topics behind the contract of buffers, `millstream.streams.BufferQueue`."""
