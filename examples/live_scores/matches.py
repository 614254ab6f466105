"""Goals go in, scores come out: a grain for each match."""

from dataclasses import dataclass

from millstream.runtime import Grain, state
from millstream.streams import Event, StreamNamespace, subscribe

TODAY = "today"


@dataclass
class Goal:
    id: str
    team: str


@dataclass
class Score:
    match: str
    home: int
    away: int
    silo: str


GOALS = StreamNamespace("goals", Goal)  # one stream for each match
SCORES = StreamNamespace("scores", Score)  # one stream for each day


class Match(Grain):
    """One match, such as `ARG-BRA`. It keeps the goals of the match."""

    goals = state(list[Goal])

    @subscribe(GOALS, commit_with=goals)
    async def on_goal(self, event: Event[Goal]) -> None:
        goals = self.goals.value
        if event.item in goals:
            return  # the reporter published this goal twice
        goals.append(event.item)
        teams = [goal.team for goal in goals]
        home, away = self.key.split("-")
        score = Score(self.key, teams.count(home), teams.count(away), self.context.silo)
        self.stream(SCORES, TODAY).publish_with(self.goals, score)
