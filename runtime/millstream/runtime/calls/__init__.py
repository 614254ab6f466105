"""From reference to turn, and from wire to turn."""
