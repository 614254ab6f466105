"""The owner of a priority queue in a cluster: one grain for each shard.

Owns the grain, the waiting polls (`polls`, `waiting`), the search for queues whose owner crashed
(`waking`), and the settings of all shards (`spreading`). Reading starts at `grain.py`.
May import `core`, `runtime` and `store`.
"""
