"""Metrics: their descriptions, histograms with fixed buckets, and the registry of one silo.

Owns the values and their collection. Counting is up to the packages in which the events happen,
and the text for Prometheus is in `silo`.
Reading starts at `registry.py`.
May import `runtime`.
"""
