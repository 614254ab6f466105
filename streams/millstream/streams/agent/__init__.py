"""The pulling agent: one queue, its reader, cache, cursors and deliveries.

Owns the agent and the subscriptions that it knows (`subscribers`, `reconciliation`), losses
(`losses`), and the options. The cores are in the packages below. Reading starts at `agent.py`.
May import `api`, `consumer`, `contracts`, `failures`, `inbox`, `ownership`, `publishing` and
`runtime`.
"""
