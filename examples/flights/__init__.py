"""The main job: a year of flights through a cluster, checked figure by figure.

Owns the demo: the data, the grains that count, publishing with and without Spark, killing silos
meanwhile, an independent count to compare with, and the report. Reading starts at `job.py`.
May import `balancers`, `providers.ledger`, `providers.memory`, `providers.spark`,
`providers.sqlite`, `runtime` and `streams`.
"""
