"""The parts of every simulated run: a plan of faults, programs, notes, stops.

Owns the record of a run, the plan (`plan`), the programs beside silos (`programs`), and graceful
stops. Reading starts at `record.py`.
May import `runtime`.
"""
