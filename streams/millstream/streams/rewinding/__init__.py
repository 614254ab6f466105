"""Reading a provider's queues from outside of the cluster, from any position that is kept."""
