"""Reading the queues of a provider from outside the cluster, from any stored position.

Owns the system target and the program's side of it (`outside`), retention for readers
(`retain_target`, `claims`), and the columns of items (`item_columns`). Reading starts at
`target.py`.
May import `contracts`, `runtime` and `staging`.
"""
