"""Which streams and which events a subscription has."""
