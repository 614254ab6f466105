"""The simulated world: time, disks, hosts and the network between them."""
