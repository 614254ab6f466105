"""A program outside the cluster that calls grains in it.

Owns the client, the choice of a gateway (`gateways`), the list of them and where it comes from
(`gateway_list`, `list_updates`, `gateway_table`), calls to system targets (`gateway_calls`), and
the watch for evicted gateways. It knows nothing of `silo`. Reading starts at `client.py`.
May import `calls`, `cluster`, `codec`, `definition`, `runtime`, `turns` and `wire`.
"""
