"""Streams, subscriptions, pulling agents, and the contracts that plug-ins implement."""

from millstream.runtime.errors import (
    CursorTooOld,
    PublishUnknown,
    QueueFenced,
    QueueFull,
    QueueUnavailable,
    StaleMapper,
    StreamError,
    SubscriptionFaulted,
)

from . import stream_codec as stream_codec
from .backoff import Backoff
from .cache import CacheLimits
from .dead_letters import (
    DeadLetter,
    DeadLetters,
    DeliveryFailure,
    FailureHandler,
    GiveUpDecision,
    KeepDeadLetters,
)
from .delivery import DeliveryOptions
from .event import Event
from .flow import FlowOptions
from .identity import QueueId, StreamId
from .mapper import HashRingMapper
from .namespace import StreamNamespace
from .options import StreamOptions
from .ownership import OwnershipOptions
from .provider import PersistentStreams, QueueStats, SiloStats
from .queue import (
    AdapterHost,
    Capability,
    Measurable,
    OutMessage,
    ProducerMark,
    QueueAdapter,
    QueueAdapterFactory,
    QueueBalancer,
    QueueMapper,
    QueueMessage,
    QueueReceiver,
    Rewindable,
    SiloSet,
)
from .stream import Start, Stream, Subscription
from .subscribe import subscribe
from .token import Token

__all__ = [
    "AdapterHost",
    "Backoff",
    "CacheLimits",
    "Capability",
    "CursorTooOld",
    "DeadLetter",
    "DeadLetters",
    "DeliveryFailure",
    "DeliveryOptions",
    "Event",
    "FailureHandler",
    "FlowOptions",
    "GiveUpDecision",
    "HashRingMapper",
    "KeepDeadLetters",
    "Measurable",
    "OutMessage",
    "OwnershipOptions",
    "PersistentStreams",
    "ProducerMark",
    "PublishUnknown",
    "QueueAdapter",
    "QueueAdapterFactory",
    "QueueBalancer",
    "QueueFenced",
    "QueueFull",
    "QueueId",
    "QueueMapper",
    "QueueMessage",
    "QueueReceiver",
    "QueueStats",
    "QueueUnavailable",
    "Rewindable",
    "SiloSet",
    "SiloStats",
    "StaleMapper",
    "Start",
    "Stream",
    "StreamError",
    "StreamId",
    "StreamNamespace",
    "StreamOptions",
    "Subscription",
    "SubscriptionFaulted",
    "Token",
    "subscribe",
]
