"""Texts and values: what requests bring, and what they are answered with."""
