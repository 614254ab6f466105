"""One subscription as its agent sees it: one entry, and a delivery from its first event on.

Owns `Subscriber`, `Seat`. Invariant: `work` is None exactly while nothing is undelivered.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import msgspec

from millstream.streams.agent.losses import Loss, with_loss
from millstream.streams.api.filters.event_filter import EventFilter
from millstream.streams.api.subscription_rows import Held
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.item import Item
from millstream.streams.contracts.token import Token
from millstream.streams.failures.handler import GiveUpDecision

from .delivery import Delivery
from .options import DeliveryOptions
from .steps import DeliveryState

__all__ = ["Seat", "Subscriber", "upto"]


class Subscriber:
    """One subscription: its consumer, and the progress of its deliveries."""

    __slots__ = (
        "commit_with",
        "delivery",
        "fits",
        "gaps",
        "gaps_told",
        "give_up_on",
        "gone_max",
        "grain_key",
        "grain_type",
        "handler",
        "held",
        "id",
        "is_explicit",
        "is_manual",
        "is_paused",
        "is_queued",
        "is_redelivered",
        "keeps_dead_letters",
        "key",
        "may_be_faulted",
        "on_give_up",
        "options",
        "position",
        "retries",
        "returns",
        "rewinds",
        "rewinds_done",
        "sent_upto",
        "stream",
        "where",
    )

    def __init__(
        self,
        subscription: str,
        stream: StreamId,
        grain_type: str,
        grain_key: str,
        handler: str,
        options: DeliveryOptions,
        *,
        keeps_dead_letters: bool,
        is_explicit: bool,
        on_give_up: GiveUpDecision | None = None,
        give_up_on: tuple[str, ...] = (),
        where: str = "",
        fits: EventFilter | None = None,
        is_manual: bool = False,
        commit_with: str = "",
    ) -> None:
        self.id = subscription
        self.key = (stream, subscription)  # stays the same if it is made again
        self.stream = stream
        self.grain_type = grain_type
        self.grain_key = grain_key
        self.handler = handler
        self.options = options
        self.keeps_dead_letters = keeps_dead_letters
        self.on_give_up = on_give_up  # None: the failure handler is asked
        self.give_up_on = give_up_on  # names of exceptions that are not retried
        self.is_explicit = is_explicit
        self.commit_with = commit_with  # explicit: the state that is written with its position
        self.is_manual = is_manual  # its consumer acknowledges by hand
        self.fits = fits  # the filter that the agent applies
        self.where = where if fits is None else ""  # the filter that the consumer's side applies
        self.delivery: Delivery | None = None
        self.position: Token | None = None  # its place before its first delivery
        self.sent_upto: Token | None = None  # events up to here may have been delivered
        self.is_queued = False
        self.held: Held = ""  # faulted or paused: its events wait
        self.returns = 0  # returns to the queue since it was stopped
        self.may_be_faulted = False  # a fault is being stored, or the answer was lost
        self.is_paused = False  # its whole stream is paused
        self.is_redelivered = False
        self.retries = 0  # calls with an event that had failed before
        self.gaps: tuple[Loss, ...] = ()  # losses that are not reported to it yet
        self.gaps_told = 0  # the number of losses reported to it
        self.gone_max: int | None = 0  # messages in these, at most; None: unknown
        self.rewinds = 0  # how often it was moved back
        self.rewinds_done = 0  # the part of these that its consumer knows

    def follow(self, made_anew: Subscriber) -> None:
        """Adopt the settings of a subscription that was made again."""
        self.on_give_up = made_anew.on_give_up
        self.give_up_on = made_anew.give_up_on
        self.fits, self.where = made_anew.fits, made_anew.where
        self.options = made_anew.options
        self.is_manual = made_anew.is_manual
        self.commit_with = made_anew.commit_with
        if self.delivery is not None:
            self.delivery.follow(made_anew.options)

    def drop(self) -> None:
        """Close the delivery, because the subscription ends or continues elsewhere. A late reply
        is ignored."""
        if self.delivery is not None:
            self.delivery.close()
            self.delivery = None

    @property
    def is_held(self) -> bool:
        """Whether the subscription is stopped, so that its events wait."""
        return self.is_paused or self.held != ""

    @property
    def work(self) -> Delivery | None:
        """The delivery of the subscription, while it has unfinished events."""
        delivery = self.delivery
        return None if delivery is None or delivery.state is DeliveryState.IDLE else delivery

    @property
    def unacked(self) -> int:
        """The number of delivered events that its consumer must still acknowledge by hand."""
        return 0 if self.delivery is None else self.delivery.cursor.ahead

    # -- losses

    def lose(self, loss: Loss) -> None:
        """Record a loss; it is reported with the next event that follows it."""
        self.gaps = with_loss(self.gaps, loss)

    def gaps_before(self, token: Token) -> tuple[Loss, ...]:
        """Return the losses to report with the event at a token: those that it follows."""
        return tuple(gap for gap in self.gaps if gap.is_before(token))

    def upto_gap(self, items: Sequence[Item]) -> Sequence[Item]:
        """Return the leading items up to the next gap."""
        told = self.gaps_before(items[0].token)
        if len(self.gaps_before(items[-1].token)) == len(told):
            return items
        return [item for item in items if len(self.gaps_before(item.token)) == len(told)]

    def note_sent(self, upto: Token | None) -> None:
        """Record that a former owner sent it events up to this token."""
        if upto is not None and (self.sent_upto is None or upto > self.sent_upto):
            self.sent_upto = upto

    def on_told(self, gaps: Sequence[Loss]) -> None:
        """Record that the consumer knows these losses; later ones must still be reported."""
        self.gaps = tuple(gap for gap in self.gaps if gap not in gaps)
        for gap in gaps:
            self.gaps_told += 1
            known, more = self.gone_max, gap.messages_max
            self.gone_max = None if known is None or more is None else known + more


def upto(items: Sequence[Item], last: Token) -> Sequence[Item]:
    """Return the leading items up to a token."""
    if items[-1].token <= last:
        return items
    return list(takewhile(lambda item: item.token <= last, items))


class Seat(msgspec.Struct, frozen=True):
    """The surroundings of a delivery, as its driver knows them.

    - `is_paused`: no call of the queue begins at present.
    - `is_alone`: an event runs alone in the queue.
    - `is_wary`: an event waits until the queue record names it.
    - `is_out`: a call of this subscription is in flight.
    - `is_early`: its event waits for the former queue of its stream.
    - `is_lagging`: it waits for events to be read again.
    - `reading`: the present rereading, in words; empty: there is none.
    - `silo`: the silo of its consumer; empty: unknown.
    """

    now_s: float
    calls_out: int
    calls_out_max: int
    is_paused: bool = False
    is_alone: bool = False
    is_wary: bool = False
    is_out: bool = False
    is_early: bool = False
    is_lagging: bool = False
    reading: str = ""
    silo: str = ""
