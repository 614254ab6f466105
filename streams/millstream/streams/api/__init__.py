"""What programs use: namespaces, streams, handlers, events."""
