"""Breadth-first search through all states, and the path to a violation.

Owns: `explore`, `Explored`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable
from typing import NamedTuple

from millstream.providers.ledger.inspection import LedgerState

from .actors import NOBODY, Model
from .cores import Numbers
from .judging import Violation, judge, judge_rest
from .moves import moves
from .world import Kind, Left, Shape, State

STATES_MAX = 5_000_000


class Explored(NamedTuple):
    """The result of an exploration.

    `depth` is the number of moves to the farthest state. `ends` counts the closings by last entry.
    `rests` counts the states in which no move is left. `is_whole` says that no state was left out.
    """

    states: int
    moves: int
    depth: int
    rests: int
    ends: dict[int, int]
    seconds: float
    is_whole: bool


class Alike(NamedTuple):
    """The parts of a state by which symmetric states are recognized."""

    shared: tuple[object, ...]
    cores: tuple[tuple[int, ...], ...]


class Keys:
    """Gives symmetric states the same key. The package's docstring explains the symmetry."""

    def __init__(self, model: Model) -> None:
        self._model = model
        quorum = model.shape.quorum
        self._places = quorum.ensemble if quorum.ensemble == quorum.write > 1 else 0
        self._first = model.record_of(model.begin()).fragments
        self._columns: Numbers[tuple[int, ...]] = Numbers()
        self._known: dict[tuple[object, ...], Alike | None] = {}

    def of(self, state: State) -> Hashable:
        if not self._places:
            return state
        known = state[:4]
        if known not in self._known:
            self._known[known] = self._alike(state)
        alike = self._known[known]
        if alike is None:
            return state
        groups, places, network = self._model.mail.places, self._places, state.network
        mail = [groups[group] for group in network[:places]]
        columns = zip(state.bookies, mail, *alike.cores, strict=False)
        spare = (state.bookies[places:], network[places:], state.left)
        return (alike.shared, *sorted(map(self._columns.of, columns)), spare)

    def _alike(self, state: State) -> Alike | None:
        """Return the parts of a state, or None if a bookie was replaced or is about to be."""
        model = self._model
        if model.record_of(state).fragments != self._first or not self._only_ends(state.rows):
            return None
        writers, readers = [state.writer], list[int]()
        shared: list[object] = [state.record, state.rows]
        for number in state.recoverers:
            recovery = model.recoveries[number]
            if recovery.fragments not in ((), self._first):
                return None
            readers += [recovery.core] if recovery.core != NOBODY else []
            writers += [recovery.writer] if recovery.writer != NOBODY else []
            shared.append(recovery._replace(core=recovery.core != NOBODY, writer=len(writers)))
        if any(model.appendings[one].bookies() != self._first[0].bookies for one in writers):
            return None
        cores = [model.appendings.columns[one] for one in writers]
        cores += [model.recoverings.columns[one] for one in readers]
        shared += [core[0] for core in cores]
        return Alike(tuple(shared), tuple(core[1:] for core in cores))

    def _only_ends(self, rows: int) -> bool:
        """Are all pending changes of the row ends that keep the bookies?"""
        messages = self._model.mail.groups[rows]
        return all(m.kind is Kind.CLOSE and m.body[2] in (None, self._first) for m in messages)


class Explorer:
    """Explores one shape. `trace` records how each state was reached, which takes memory."""

    def __init__(self, shape: Shape, trace: bool = False) -> None:
        self.model = Model(shape)
        self._shape = shape
        self._keys = Keys(self.model)
        self._trace = trace
        self._from: dict[State, tuple[State, object]] = {}
        self._judged: set[tuple[int, int, tuple[int, ...], tuple[int, ...]]] = set()
        self.ends: Counter[int] = Counter()
        self.moves = self.rests = 0

    def run(self, states_max: int = STATES_MAX) -> Explored:
        """Explore the states. Raises Violation with the moves that led to it."""
        began_s = time.perf_counter()
        begin = self.model.begin()
        seen, front, depth = {self._keys.of(begin)}, [begin], 0
        while front and len(seen) < states_max:
            following: list[State] = []
            for state in front:
                self._expand(state, seen, following)
            front = following
            depth += bool(front)
        took_s = time.perf_counter() - began_s
        ends = dict(sorted(self.ends.items()))
        return Explored(len(seen), self.moves, depth, self.rests, ends, took_s, not front)

    def _expand(self, state: State, seen: set[Hashable], following: list[State]) -> None:
        move: object = None
        is_rest = True
        try:
            for move, after in moves(self.model, state):
                is_rest = False
                self.moves += 1
                key = self._keys.of(after)
                if key in seen:
                    continue
                seen.add(key)
                if self._trace:
                    self._from[after] = (state, move)
                self._judge(after)
                following.append(after)
            if is_rest:
                self._rest(state)
        except Violation as found:
            move = None if str(found).startswith("I32") else move
            raise Violation(f"{found}\n{self._way(state)}\n    then {move}") from None

    def _judge(self, state: State) -> None:
        confirmed = self.model.writer_of(state).confirmed
        key = (state.record, confirmed, state.bookies, state.left)
        if key not in self._judged:
            self._judged.add(key)
            judge(self.model, state)

    def _rest(self, state: State) -> None:
        self.rests += 1
        record = self.model.record_of(state)
        if record.state is LedgerState.CLOSED:
            self.ends[record.last] += 1
        if self._shape.must_end and state.left[Left.GIVE_UPS] == self._shape.bounds.give_ups:
            judge_rest(self.model, state)

    def _way(self, state: State) -> str:
        if not self._trace:
            return "    (explored without a trace)"
        lines: list[str] = []
        while state in self._from:
            state, move = self._from[state]
            lines.append(f"    {move}")
        return "\n".join(reversed(lines))


def explore(shape: Shape, states_max: int = STATES_MAX) -> Explored:
    """Explore all states of a shape. Raises Violation with the shortest path to it."""
    try:
        return Explorer(shape).run(states_max)
    except Violation:
        Explorer(shape, trace=True).run(states_max)
        raise
