"""The verdict of a check over an adapter.

Owns: `ContractBroken`, `NotRun`, `expect`. Invariant: no check relies on an `assert` statement, so
`python -O` refuses the same adapters as plain `python`.
"""

from __future__ import annotations

__all__ = ["ContractBroken", "NotRun", "expect"]

SHOWN_MAX = 400


class ContractBroken(AssertionError):
    """An adapter broke a rule of the contract; an `AssertionError`.

    Args:
        expected: the expected behaviour.
        came: the observed behaviour.

    Attributes:
        check: the name of the check.
        rule: the rule that the check tests.
        expected: the expected behaviour.
        came: the observed behaviour, as text of at most 400 characters.
    """

    def __init__(self, expected: str, came: object) -> None:
        self.check = self.rule = ""
        self.expected = expected
        self.came = (came if isinstance(came, str) else repr(came))[:SHOWN_MAX]
        super().__init__(expected, self.came)

    def __str__(self) -> str:
        named = f"{self.check}: {self.rule} " if self.check else ""
        return f"{named}Expected: {self.expected}. Got: {self.came}."


class NotRun(Exception):
    """A check cannot be run, or does not apply; the text has the reason."""


def expect(is_so: bool, expected: str, came: object) -> None:
    """Raise ContractBroken unless the condition holds."""
    if not is_so:
        raise ContractBroken(expected, came)
