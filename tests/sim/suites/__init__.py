"""Suites of whole clusters in virtual time, with seeded troubles, judged by checkers."""
