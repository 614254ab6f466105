"""The main example: a year of flights in a cluster, with every figure checked.

Owns the data, the grains that count, publishing with and without Spark, the killing of silos, an
independent count for comparison, and the report.
Reading starts at `job.py`.
May import `balancers`, `providers.ledger`, `providers.memory`, `providers.spark`,
`providers.sqlite`, `runtime` and `streams`.
"""
