"""What plug-ins implement: tokens, identities, queues, and the suite that judges them."""
