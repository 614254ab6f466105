"""Suite `streams`, and what other suites with streams have of it: traffic, handlers, the run."""
