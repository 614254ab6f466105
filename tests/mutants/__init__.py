"""Plants small faults in the cores of each package, whose tests must detect them. `make
mutants`."""
