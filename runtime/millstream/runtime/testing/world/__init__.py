"""The simulated world: time, disks, hosts and the network between them.

Owns the event loop with a virtual clock, hosts that crash, links and their faults, and the
transport of a simulated host. Reading starts at `loop.py`.
May import `disk`, `runtime` and `wire`.
"""
