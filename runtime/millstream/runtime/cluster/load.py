"""The load of silos: reports, smoothing, scores, and the choice of a silo by load. Pure.

`LoadMeter` makes the reports of one silo, `KnownLoads` keeps those of all silos, and
`choose_least_loaded` chooses. `gateways` measures and sends.

Invariants:

- No report can break a choice: a figure that is not a number, negative, or missing counts as not
  known, and a figure above its limit counts as the limit.
- A figure that is not known counts as the mean of the other candidates, so the silo is neither
  preferred nor avoided for it.
- A silo that reports figures of resources and then falls silent is left out, as an overloaded one.
- Only reports decide whether a silo is overloaded. Placements since the last report affect scores,
  and lose half of their effect each second, because they may have failed.

Source: `ResourceOptimizedPlacementDirector` of Orleans. Orleans smooths by a filter of the kind of
Kalman's, and does not count the lag of the event loop, which has no counterpart there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from millstream.runtime.machine import Usage
from millstream.runtime.options import PlacementOptions

__all__ = [
    "REPEATED_S",
    "STALE_S",
    "KnownLoads",
    "Load",
    "LoadMeter",
    "LoadReport",
    "choose_least_loaded",
    "differs",
]

REPORT_VERSION = 1
"""The version of `LoadReport`. Version 0 is the number of activations alone."""
REPEATED_S = 5.0
"""A silo repeats a report that has not changed after this time, in seconds."""
STALE_S = 15.0
"""Seconds after which a report of version 1 or later no longer counts."""
ACTIVATIONS_MOST = 1_000_000_000
BYTES_MOST = 2**50
LAG_MOST_S = 3_600.0
SHARE_STEP = 0.02
"""A change of a share by less than this is not reported at once."""
LAG_STEP_S = 0.05
"""A change of the lag by less than this is not reported at once."""
ACTIVATIONS_BASE = 100
"""A placement since the last report raises the processor time of a silo in proportion to its
activations, but as if it had at least this many."""


class LoadReport(msgspec.Struct, array_like=True, frozen=True):
    """The load of one silo at one moment, as it reports it. None: not known.

    Later versions add fields at the end. Older versions ignore them.

    Attributes:
        version: The version of the report.
        activations: The number of activations.
        cpu: The processor time that the silo uses, as a share of one core or of its limit.
        memory_used: Bytes of memory of the process.
        memory_available: Bytes of memory that processes can still get.
        memory_total: Bytes of memory of the machine or container.
        lag_s: The lag of the event loop.
        movable: The activations that rebalancing may move. None: the silo does not rebalance.
        control: The number of the last order to suspend (odd) or resume (even) rebalancing that the
            silo knows. None: the silo does not rebalance.
    """

    version: int
    activations: int
    cpu: float | None = None
    memory_used: int | None = None
    memory_available: int | None = None
    memory_total: int | None = None
    lag_s: float | None = None
    movable: int | None = None
    control: int | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one silo as another silo knows it, after checks. None: not known.

    Attributes:
        activations: The number of activations in the last report.
        placed: Placements of this silo since then.
        is_stale: True if the silo should have reported since.
    """

    activations: int | None = None
    cpu: float | None = None
    memory_used: float | None = None
    memory_available: float | None = None
    memory_total: float | None = None
    lag_s: float | None = None
    placed: int = 0
    is_stale: bool = False

    @property
    def used_share(self) -> float | None:
        """The share of all memory that the process uses."""
        return share(self.memory_used, self.memory_total)

    @property
    def unavailable_share(self) -> float | None:
        """The share of all memory that is not available."""
        free = share(self.memory_available, self.memory_total)
        return None if free is None else 1.0 - free

    @property
    def estimated_cpu(self) -> float | None:
        """The processor time, raised for the placements since the report."""
        if self.cpu is None:
            return None
        base = max(self.activations or 0, ACTIVATIONS_BASE)
        return min(1.0, self.cpu * (1.0 + self.placed / base))

    @property
    def estimated_activations(self) -> float | None:
        """The number of activations, with the placements since the report."""
        return None if self.activations is None else float(self.activations + self.placed)


UNKNOWN = Load()


def share(part: float | None, whole: float | None) -> float | None:
    """Return a part as a share from 0 to 1, or None if a figure is not known."""
    return min(1.0, part / whole) if part is not None and whole else None


def check_figure(value: float | None, most: float) -> float | None:
    """Return a figure of a report, at most `most`, or None if it cannot be true."""
    if value is None or math.isnan(value) or value < 0 or value == math.inf:
        return None
    return min(value, most)


# -- reports


class LoadMeter:
    """Makes the reports of one silo from measurements, and smooths them.

    The smoothing is an exponential average: after `smoothing_s` a change counts by half. The number
    of activations is exact.
    """

    def __init__(self, smoothing_s: float) -> None:
        self._smoothing_s = smoothing_s
        self._at_s = -math.inf  # so the first figures count as they are
        self._cpu_s: float | None = None
        self._known: dict[str, float] = {}

    def measure(self, now_s: float, activations: int, usage: Usage, lag_s: float) -> LoadReport:
        """Return the report of this moment.

        Args:
            now_s: a clock that never goes back.
            activations: the number of activations.
            usage: the resources that the process has used.
            lag_s: the lag of the event loop since the last measurement.
        """
        elapsed_s = now_s - self._at_s
        cpu = self._cpu_share(usage, elapsed_s)
        self._at_s, self._cpu_s = now_s, usage.cpu_s
        smooth = self._smooth
        used = smooth("used", usage.memory_used, elapsed_s)
        available = smooth("available", usage.memory_available, elapsed_s)
        return LoadReport(
            version=REPORT_VERSION,
            activations=activations,
            cpu=smooth("cpu", cpu, elapsed_s),
            memory_used=None if used is None else round(used),
            memory_available=None if available is None else round(available),
            memory_total=usage.memory_total,
            lag_s=smooth("lag", max(0.0, lag_s), elapsed_s),
        )

    def _cpu_share(self, usage: Usage, elapsed_s: float) -> float | None:
        """Return the share of a core since the last measurement. The event loop can use one."""
        if usage.cpu_s is None or self._cpu_s is None or elapsed_s <= 0:
            return None
        permitted = min(1.0, usage.cores or 1.0)
        return min(1.0, max(0.0, usage.cpu_s - self._cpu_s) / elapsed_s / permitted)

    def _smooth(self, name: str, value: float | None, elapsed_s: float) -> float | None:
        if value is None:
            return self._known.get(name)
        known = self._known.get(name, value)
        kept = 0.5 ** (elapsed_s / self._smoothing_s)
        self._known[name] = known * kept + value * (1.0 - kept)
        return self._known[name]


def differs(old: LoadReport, new: LoadReport) -> bool:
    """Return whether a report differs so much from the last one that it must be sent at once."""
    if list_exact(old) != list_exact(new):
        return True
    step = (new.memory_total or 0) * SHARE_STEP
    return (
        has_moved(old.cpu, new.cpu, SHARE_STEP)
        or has_moved(old.lag_s, new.lag_s, LAG_STEP_S)
        or has_moved(old.memory_used, new.memory_used, step)
        or has_moved(old.memory_available, new.memory_available, step)
    )


def list_exact(report: LoadReport) -> tuple[int | None, ...]:
    """Return the figures of which each change is reported."""
    return (report.activations, report.memory_total, report.movable, report.control)


def has_moved(old: float | None, new: float | None, step: float) -> bool:
    """Return whether a figure differs by more than a step, or became known or unknown."""
    if old is None or new is None:
        return old is not new
    return abs(old - new) > step


class Heard:
    """The last report of one silo, and the placements since then."""

    __slots__ = ("activations", "at_s", "placed", "report")

    def __init__(self, report: LoadReport | None, at_s: float) -> None:
        count = None if report is None else report.activations
        activations = check_figure(count, ACTIVATIONS_MOST)
        self.activations = None if activations is None else int(activations)
        self.report = report
        self.at_s = at_s
        self.placed = 0

    @property
    def count(self) -> int:
        """The activations in the report, with the placements since then."""
        return (self.activations or 0) + self.placed


class KnownLoads:
    """The loads of the silos of a cluster, as one silo knows them."""

    def __init__(self) -> None:
        self._heard: dict[str, Heard] = {}
        self._counts: dict[str, int] = {}

    @property
    def counts(self) -> Mapping[str, int]:
        """The activations of each silo with the placements since its report."""
        return MappingProxyType(self._counts)

    def learn(self, silo: str, report: LoadReport, now_s: float) -> None:
        """Store a report. It replaces the placements that this silo made meanwhile."""
        heard = self._heard[silo] = Heard(report, now_s)
        self._counts[silo] = heard.count

    def place(self, silo: str, now_s: float) -> None:
        """Note that this silo has placed an activation there."""
        heard = self._heard.get(silo)
        if heard is None:
            heard = self._heard[silo] = Heard(None, now_s)
        heard.placed += 1
        self._counts[silo] = heard.count

    def keep(self, silos: Iterable[str]) -> None:
        """Forget all other silos, and half of the placements since the reports."""
        self._heard = {silo: self._heard[silo] for silo in silos if silo in self._heard}
        for heard in self._heard.values():
            heard.placed //= 2
        self._counts = {silo: heard.count for silo, heard in self._heard.items()}

    def fresh_reports(self, now_s: float) -> dict[str, LoadReport]:
        """Return the last reports that are not stale."""
        return {
            silo: heard.report
            for silo, heard in self._heard.items()
            if heard.report is not None and now_s - heard.at_s <= STALE_S
        }

    def loads(self, silos: Iterable[str], now_s: float) -> dict[str, Load]:
        """Return the loads of silos."""
        return {silo: self._load(self._heard.get(silo), now_s) for silo in silos}

    def _load(self, heard: Heard | None, now_s: float) -> Load:
        if heard is None:
            return UNKNOWN
        if heard.report is None:
            return Load(placed=heard.placed)
        report = heard.report
        return Load(
            activations=heard.activations,
            cpu=check_figure(report.cpu, 1.0),
            memory_used=check_figure(report.memory_used, BYTES_MOST),
            memory_available=check_figure(report.memory_available, BYTES_MOST),
            memory_total=check_figure(report.memory_total, BYTES_MOST),
            lag_s=check_figure(report.lag_s, LAG_MOST_S),
            placed=heard.placed,
            is_stale=report.version > 0 and now_s - heard.at_s > STALE_S,
        )


# -- the choice


def choose_least_loaded(
    silos: Sequence[str],
    local: str,
    loads: Mapping[str, Load],
    options: PlacementOptions,
    roll: Callable[[int], int],
) -> str:
    """Choose one of `silos` (not empty). `roll(n)` returns an index below n.

    About sqrt(n) random candidates are compared, so that silos that see the same loads do not all
    choose the same silo. The local silo is always compared.
    """
    fit = [silo for silo in silos if not is_avoided(loads.get(silo, UNKNOWN), options)]
    fit = fit or list(silos)
    drawn = draw(fit, math.ceil(math.sqrt(len(fit))), roll)
    if local in fit and local not in drawn:
        drawn.append(local)
    scores = score_all({silo: loads.get(silo, UNKNOWN) for silo in drawn}, options)
    best = min(scores, key=scores.__getitem__)
    if local in scores and scores[local] <= scores[best] + options.local_margin:
        return local
    return best


def is_avoided(load: Load, options: PlacementOptions) -> bool:
    """Return whether a silo gets activations only if no other silo can: overloaded or silent."""
    return (
        load.is_stale
        or (load.cpu or 0.0) > options.cpu_max
        or (load.unavailable_share or 0.0) > options.memory_max
        or (load.lag_s or 0.0) > options.lag_max_s
    )


def draw(silos: Sequence[str], count: int, roll: Callable[[int], int]) -> list[str]:
    """Return `count` different random silos."""
    left, drawn = list(silos), list[str]()
    while left and len(drawn) < count:
        at = roll(len(left))
        drawn.append(left[at])
        left[at] = left[-1]
        left.pop()
    return drawn


def score_all(loads: Mapping[str, Load], options: PlacementOptions) -> dict[str, float]:
    """Return the score of each silo (at least one): 0 for no load, 1 for the highest in every
    respect.
    """
    most = max(load.estimated_activations or 0.0 for load in loads.values())
    largest = max(load.memory_total or 0.0 for load in loads.values())
    known: tuple[tuple[float, Callable[[Load], float | None]], ...] = (
        (options.cpu_weight, lambda load: load.estimated_cpu),
        (options.memory_used_weight, lambda load: load.used_share),
        (options.memory_available_weight, lambda load: load.unavailable_share),
        (options.memory_total_weight, lambda load: rest(share(load.memory_total, largest))),
        (options.activations_weight, lambda load: share(load.estimated_activations, most)),
        (options.lag_weight, lambda load: share(load.lag_s, options.lag_max_s)),
    )
    scores = dict.fromkeys(loads, 0.0)
    whole = sum(weight for weight, _ in known)
    for weight, figure in known:
        found = {silo: figure(load) for silo, load in loads.items()}
        values = [value for value in found.values() if value is not None]
        mean = sum(values) / len(values) if values else 0.0
        for silo, value in found.items():
            scores[silo] += weight / whole * (mean if value is None else value)
    return scores


def rest(part: float | None) -> float | None:
    """Return the share that a share leaves of the whole."""
    return None if part is None else 1.0 - part
