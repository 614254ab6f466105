"""A program outside the cluster that calls grains in it.

Owns the client, its connections to gateways (`gateways`), the choice of a gateway (`gateway_list`,
`gateway_table`), and the watch for evicted ones. It knows nothing of `silo`. Reading starts at
`client.py`.
May import `calls`, `cluster`, `codec`, `definition`, `runtime`, `turns` and `wire`.
"""
