"""Deliveries: from a subscription with a backlog to the call of its consumer.

Owns the core of one delivery (`delivery`, `steps`), the places of an agent's deliveries
(`deliveries`), and the driver that sends their events (`dispatch`). It also owns the call of a
consumer (`consumer_calls`), filters, and events that are given up (`give_ups`).

Reading starts at `delivery.py`.

May import `agent`, `agent.cache`, `agent.progress`, `api`, `consumer`, `contracts`, `failures`,
`inbox`, `ownership` and `runtime`.
"""
