"""Named cursors: what was acknowledged, how it is stored, and what may be deleted for it."""
