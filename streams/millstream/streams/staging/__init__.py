"""Staged writes: a batch of a writer outside is seen as a whole, or not at all.

Owns the decisions about batches (`coordinator`, pure), the grain of a writer and its driver
(`writer`, `desk`), stored rows, the way in (`target`, `stager`), and the view of an operator.
Reading starts at `coordinator.py`.
May import `contracts`, `publishing` and `runtime`.
"""
