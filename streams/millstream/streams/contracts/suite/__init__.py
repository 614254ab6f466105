"""The contract suite of queue adapters: what a plug-in promises, one check per rule."""
