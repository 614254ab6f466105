"""The inboxes of consumers outside the cluster."""
