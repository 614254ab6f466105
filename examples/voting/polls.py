"""Polls: a stored grain for each poll, live results as a streamed result, and a list of polls."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from millstream.runtime import Grain, state

OPTIONS_MAX = 10
TEXT_CHARS_MAX = 200
VOTERS_MAX = 100_000
POLLS_LISTED_MAX = 100


@dataclass
class Ballot:
    """The stored content of a poll: the option of each voter, by the name of the voter."""

    question: str = ""
    options: list[str] = field(default_factory=list)
    votes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """The results of a poll at one moment: the votes for each option, in their order."""

    question: str
    options: list[str]
    counts: list[int]


def count(ballot: Ballot) -> Results:
    """Return the results of a poll."""
    counts = [0] * len(ballot.options)
    for option in ballot.votes.values():
        counts[option] += 1
    return Results(ballot.question, list(ballot.options), counts)


def check_poll(question: str, options: list[str]) -> None:
    """Raise ValueError for a poll with too few or too many options, or wrong texts."""
    if not 2 <= len(options) <= OPTIONS_MAX or len(set(options)) < len(options):
        raise ValueError(f"a poll has 2 to {OPTIONS_MAX} different options")
    if not all(
        0 < len(text.strip()) and len(text) <= TEXT_CHARS_MAX for text in (question, *options)
    ):
        raise ValueError(f"a text has 1 to {TEXT_CHARS_MAX} characters")


class Poll(Grain):
    """One poll. Each voter has one vote, and may change it."""

    ballot = state(Ballot)

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    async def open(self, question: str, options: list[str]) -> None:
        """Open the poll, and list it. Raises ValueError if it is open, or the poll is wrong."""
        check_poll(question, options)
        if self.ballot.value.options:
            raise ValueError(f"the poll {self.key} is open already")
        self.ballot.value = Ballot(question, options)
        await self.ballot.write()
        await self.grain(Polls, "all").add(self.key, question)

    async def vote(self, voter: str, option: int) -> Results:
        """Store a vote, and return the results. Raises ValueError for a wrong vote."""
        ballot = self.ballot.value
        if not 0 <= option < len(ballot.options):
            raise ValueError(f"the poll {self.key} has no option {option}")
        if voter not in ballot.votes and len(ballot.votes) >= VOTERS_MAX:
            raise ValueError(f"the poll {self.key} has {VOTERS_MAX} voters already")
        ballot.votes[voter] = option
        await self.ballot.write()
        self._changed.set()
        self._changed = asyncio.Event()
        return count(ballot)

    async def watch(self) -> AsyncGenerator[Results, None]:
        """Yield the results now, and again after each change."""
        while True:
            changed = self._changed
            yield count(self.ballot.value)
            await changed.wait()


class Polls(Grain):
    """The newest polls. One grain, with the key `all`, has them."""

    questions = state(dict[str, str])

    async def add(self, poll: str, question: str) -> None:
        """Add a poll to the list."""
        questions = {**self.questions.value, poll: question}
        while len(questions) > POLLS_LISTED_MAX:
            del questions[next(iter(questions))]
        self.questions.value = questions
        await self.questions.write()

    async def list_all(self) -> dict[str, str]:
        """Return the questions by poll, the oldest first."""
        return self.questions.value


def is_key(text: str) -> bool:
    """Return whether a text can be the key of a poll, or the name of a voter."""
    return 0 < len(text) <= 40 and text.isascii() and text.replace("-", "").isalnum()
