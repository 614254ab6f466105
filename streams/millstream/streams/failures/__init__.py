"""Events that were given up: who decides, where they are kept, how they come back."""
