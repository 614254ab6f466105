"""Streams, subscriptions, pulling agents, and the contracts that plug-ins implement.

Owns everything from a publish to the handler of a subscription; queues and balancers are plug-ins.
Reading starts at `api/stream.py`.
May import `runtime`.
"""

from millstream.runtime import (
    CursorTooOld,
    EnqueueFailed,
    PublishUnknown,
    QueueFenced,
    QueueFull,
    QueueUnavailable,
    StaleMapper,
    StreamError,
    SubscriptionFaulted,
)
from millstream.runtime.extending import Backoff, publish

from .agent.cache.limits import CacheLimits
from .agent.delivery.options import DeliveryOptions
from .agent.flow import FlowOptions
from .agent.options import StreamOptions
from .api import stream_codec as stream_codec
from .api.event import Event, Gap
from .api.namespace import StreamNamespace
from .api.stream import Stream
from .api.stream_events import StreamEvents
from .api.subscribe import subscribe
from .api.subscription import Start, Subscription
from .broadcast.channel import BroadcastChannel, Channel
from .broadcast.fan_out import Broadcast, BroadcastOptions
from .broadcast.listen import listen
from .consumer.on_error import on_error
from .consumer.on_gap import on_gap
from .contracts.buffer import (
    AutoCommit,
    BufferConsumer,
    BufferProducer,
    BufferQueue,
    BufferTopic,
)
from .contracts.capability import Capability
from .contracts.host import AdapterHost
from .contracts.identity import QueueId, StreamId
from .contracts.mapping import QueueBalancer, QueueMapper, QueueOwner, SiloSet
from .contracts.message import MessageLimits, OutMessage, Page, ProducerMark, QueueMessage
from .contracts.push import PushReceiver, PushSource
from .contracts.queue import (
    BringsMapper,
    EnqueuesAtOnce,
    LimitsMessages,
    Measurable,
    QueueAdapter,
    QueueAdapterFactory,
    QueueReader,
    QueueReceiver,
    Retains,
    Rewinds,
    Seals,
    TellsFailed,
)
from .contracts.token import Token
from .failures.dead_letters import DeadLetters, dead_letters
from .failures.handler import (
    DeliveryFailure,
    FailureHandler,
    GiveUpDecision,
    KeepDeadLetters,
)
from .failures.letters import DeadLetter
from .insight.report import (
    HolderReport,
    LaggingStream,
    LetterReport,
    QueueReport,
    StreamReport,
    SubscriptionReport,
)
from .insight.verdict import Why
from .insight.why import lagging, why
from .ownership.function_mapper import FunctionMapper
from .ownership.mapper import HashRingMapper
from .ownership.options import OwnershipOptions
from .ownership.queue_pauses import pause_queue, resume_queue
from .paused_streams import pause_stream, resume_stream
from .provider.provider import PersistentStreams
from .provider.queue_resize import resize
from .provider.target import QueueStats, SiloStats
from .publishing.split import SendLimits
from .stats import cluster_stats

__all__ = [
    "AdapterHost",
    "AutoCommit",
    "Backoff",
    "BringsMapper",
    "Broadcast",
    "BroadcastChannel",
    "BroadcastOptions",
    "BufferConsumer",
    "BufferProducer",
    "BufferQueue",
    "BufferTopic",
    "CacheLimits",
    "Capability",
    "Channel",
    "CursorTooOld",
    "DeadLetter",
    "DeadLetters",
    "DeliveryFailure",
    "DeliveryOptions",
    "EnqueueFailed",
    "EnqueuesAtOnce",
    "Event",
    "FailureHandler",
    "FlowOptions",
    "FunctionMapper",
    "Gap",
    "GiveUpDecision",
    "HashRingMapper",
    "HolderReport",
    "KeepDeadLetters",
    "LaggingStream",
    "LetterReport",
    "LimitsMessages",
    "Measurable",
    "MessageLimits",
    "OutMessage",
    "OwnershipOptions",
    "Page",
    "PersistentStreams",
    "ProducerMark",
    "PublishUnknown",
    "PushReceiver",
    "PushSource",
    "QueueAdapter",
    "QueueAdapterFactory",
    "QueueBalancer",
    "QueueFenced",
    "QueueFull",
    "QueueId",
    "QueueMapper",
    "QueueMessage",
    "QueueOwner",
    "QueueReader",
    "QueueReceiver",
    "QueueReport",
    "QueueStats",
    "QueueUnavailable",
    "Retains",
    "Rewinds",
    "Seals",
    "SendLimits",
    "SiloSet",
    "SiloStats",
    "StaleMapper",
    "Start",
    "Stream",
    "StreamError",
    "StreamEvents",
    "StreamId",
    "StreamNamespace",
    "StreamOptions",
    "StreamReport",
    "Subscription",
    "SubscriptionFaulted",
    "SubscriptionReport",
    "TellsFailed",
    "Token",
    "Why",
    "cluster_stats",
    "dead_letters",
    "lagging",
    "listen",
    "on_error",
    "on_gap",
    "pause_queue",
    "pause_stream",
    "resize",
    "resume_queue",
    "resume_stream",
    "subscribe",
    "why",
]

publish(__name__)
