"""`millstream index`: asks an index of priority queues, and looks whether it is whole."""
