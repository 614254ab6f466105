"""Streams, subscriptions, pulling agents, and the contracts that plug-ins implement."""

from millstream.runtime import (
    CursorTooOld,
    PublishUnknown,
    QueueFenced,
    QueueFull,
    QueueUnavailable,
    StaleMapper,
    StreamError,
    SubscriptionFaulted,
)
from millstream.runtime.extending import Backoff

from .agent.cache import CacheLimits
from .agent.dead_letters import (
    DeadLetter,
    DeadLetters,
    DeliveryFailure,
    FailureHandler,
    GiveUpDecision,
    KeepDeadLetters,
)
from .agent.delivery import DeliveryOptions
from .agent.flow import FlowOptions
from .agent.options import StreamOptions
from .api import stream_codec as stream_codec
from .api.event import Event
from .api.namespace import StreamNamespace
from .api.stream import Start, Stream, Subscription
from .api.subscribe import subscribe
from .contracts.identity import QueueId, StreamId
from .contracts.queue import (
    AdapterContext,
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
from .contracts.token import Token
from .ownership.mapper import HashRingMapper
from .ownership.options import OwnershipOptions
from .provider.provider import PersistentStreams
from .provider.target import QueueStats, SiloStats

__all__ = [
    "AdapterContext",
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
