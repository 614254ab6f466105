"""The pulling agent: one queue with its reader, cache, cursors and deliveries.

Owns the agent, its known subscriptions (`subscribers`, `reconciliation`), losses (`losses`) and the
options. The cores are in the packages below.

Reading starts at `agent.py`.

May import `api`, `consumer`, `contracts`, `failures`, `inbox`, `ownership`, `publishing` and
`runtime`.
"""
