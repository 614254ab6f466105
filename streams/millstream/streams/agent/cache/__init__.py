"""The messages of a queue that were read and are not done, and the cursors in them."""
