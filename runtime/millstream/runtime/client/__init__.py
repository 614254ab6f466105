"""A program outside of the cluster that calls grains in it.

Owns the client, the choice of a gateway (`gateways`), and the list of gateways with its sources
(`gateway_list`, `list_updates`, `gateway_table`). It also owns calls to system targets
(`gateway_calls`), the watch for evicted gateways, and the objects that grains call (`observers`,
`attachment`). It does not use `silo`. Reading starts at `client.py`.
May import `calls`, `cluster`, `codec`, `definition`, `runtime`, `turns` and `wire`.
"""
