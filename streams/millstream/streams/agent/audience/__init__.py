"""The subscriptions of one stream, as the agent of its queue knows them.

Owns the entry of a stream, and the list of a hand-over (`handover_list`). Marks and rows become
subscribers in `newcomers`, and `audience` adds them to the entry. `cold_streams` reads rows,
`fan_out` gives messages to all subscriptions, and `stopped_subscriptions` knows those that are
stopped.

Reading starts at `stream_entry.py`.

May import `agent`, `agent.cache`, `agent.delivery`, `api`, `contracts`, `ownership` and `runtime`.
"""
