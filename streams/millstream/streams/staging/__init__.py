"""Staged writes: a batch of a writer outside the cluster becomes visible as a whole, or not at all.

Owns the decisions about batches (`coordinator`, pure), the grain of a writer and its driver
(`writer`, `desk`), the stored rows, the entry point (`target`, `stager`), and the operator's view.

Reading starts at `coordinator.py`.

May import `contracts`, `publishing` and `runtime`.
"""
