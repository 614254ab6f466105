"""Small faults planted in the cores of each room: its tests must see them. `make mutants`."""
