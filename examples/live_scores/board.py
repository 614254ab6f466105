"""Scores go in, changes come out: a grain for the board of a day."""

from dataclasses import dataclass, field

from matches import SCORES, Score

from millstream.runtime import Grain, state
from millstream.streams import Event, StreamNamespace, subscribe


@dataclass
class Results:
    goals: int = 0
    scores: dict[str, Score] = field(default_factory=dict)


CHANGES = StreamNamespace("changes", Results)  # one stream for each day


class Board(Grain):
    """The board of one day. It keeps all scores and counts the goals."""

    results = state(Results)

    @subscribe(SCORES, commit_with=results)
    async def on_score(self, event: Event[Score]) -> None:
        results, score = self.results.value, event.item
        results.goals += 1
        results.scores[score.match] = score
        change = Results(results.goals, {score.match: score})
        self.stream(CHANGES, self.key).publish_with(self.results, change)

    async def read(self) -> Results:
        return self.results.value
