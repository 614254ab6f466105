"""What a priority queue is: messages and their states, leases, order, exclusivity, and what is
remembered of requests. Pure: no I/O, no clock, no chance.
"""
