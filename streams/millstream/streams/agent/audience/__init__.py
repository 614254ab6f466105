"""The subscriptions of one stream, as the agent of its queue knows them.

Owns the entry of a stream, adding subscriptions to it (`audience`) that are made of marks and rows
(`newcomers`), reading these rows (`cold_streams`), giving messages to all subscriptions of a stream
(`fan_out`), stopped subscriptions, and the subscriptions of a hand-over (`handover_list`). Reading
starts at `stream_entry.py`.
May import `agent`, `agent.cache`, `agent.delivery`, `api`, `contracts`, `ownership` and `runtime`.
"""
