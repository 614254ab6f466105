"""Stream handles: publish, subscribe, and consume.

Owns: `Stream`. Not: the subscriptions (`subscription`, `rendezvous`). Invariants: `publish` returns
when the provider has accepted the event. `subscribe` returns when every later event will be
delivered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar
from urllib.parse import quote, unquote

import msgspec

from millstream.runtime import ConfigError, Grain, State, StreamError
from millstream.runtime.extending import (
    Backoff,
    Codec,
    Opener,
    check_headers,
    check_text,
    is_grain,
    is_reentrant,
    is_stateless_worker,
    kind_of,
    states_of,
)
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.token import Token
from millstream.streams.failures.handler import GiveUpDecision
from millstream.streams.failures.policy import FailurePolicy, type_names, wrong_policy
from millstream.streams.publishing.ingest import GatewayPublisher
from millstream.streams.publishing.outbox import outbox_of

from .event import Event, Gap
from .filters.event_filter import Where, name_filter, wrong_filter
from .filters.known import find_name
from .handlers import check_explicit, commits, is_batch_handler, label_of
from .implicit import is_implicit
from .inbox import EPHEMERAL, inbox_id, inbox_key, inbox_name, inbox_of, is_ephemeral
from .rendezvous import Rendezvous, rendezvous_key, rendezvous_of
from .stream_events import Outside, StreamEvents
from .subscription import Start, Subscription, local_consumer, start_text
from .subscription_rows import SubscriptionRow

__all__ = ["Start", "Stream", "Subscription"]

T = TypeVar("T")
EVENTS_MAX = 10_000
"""The largest number of events that a program may ask to hold."""
Handler = Callable[[Event[T]], Coroutine[Any, Any, None]]
BatchHandler = Callable[[list[Event[T]]], Coroutine[Any, Any, None]]


class Publisher(Protocol):
    """Takes the events of a stream: a provider, or the gateway of a client."""

    async def publish(
        self, stream: StreamId, bodies: Sequence[bytes], headers: Mapping[str, str] | None
    ) -> Token | None:
        """Store events in order: all of them, or a prefix, in as many messages as they need."""
        ...


class Topic(Protocol[T]):
    """The properties that all streams of one kind share: a `StreamNamespace`."""

    @property
    def name(self) -> str: ...
    @property
    def provider(self) -> str: ...
    @property
    def subscriptions(self) -> str: ...
    @property
    def item(self) -> Any: ...
    @property
    def codec(self) -> Codec[T]: ...


class Stream(Generic[T]):
    """One stream, as seen from a silo, a client, a cluster or a grain: `stream(namespace, key)`.

    Handles are equal if provider, namespace and key are equal. A handle can be an argument of a
    grain method, annotated as `Stream[Item]`.

    A handler given to `subscribe` is an `async def` method with one argument, `Event[T]` or
    `list[Event[T]]`, that may be given by position. Its name begins with one underscore, or it is
    marked by `@subscribe`; otherwise references could call it. T is the namespace's item itself,
    because items are decoded as the handler annotates them. `Any` gives the items as plain data,
    and `T | None` is allowed as well. `subscribe` refuses other handlers before it stores anything.
    """

    __slots__ = ("_key", "_runtime", "_topic")

    def __init__(self, runtime: Opener, topic: Topic[T], key: str) -> None:
        if type(key) is not str or not (key.isascii() or key.isprintable()):
            check_text("the key of a stream", key)
        self._runtime = runtime
        self._topic = topic
        self._key = key

    def __repr__(self) -> str:
        return f"<stream {self.id}>"

    @property
    def key(self) -> str:
        """The key of the stream."""
        return self._key

    @property
    def id(self) -> StreamId:
        """The namespace's name and the key."""
        return StreamId(self._topic.name, self._key)

    @property
    def provider(self) -> str:
        """Name of the provider that carries the stream."""
        return self._topic.provider

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (other.provider, other.id) == (self.provider, self.id)

    def __hash__(self) -> int:
        return hash((self.provider, self.id))

    def _encode(self, item: T) -> bytes:
        try:
            return self._topic.codec.encode(item)
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"{self._topic!r}: item: {error}") from None

    def _encode_many(self, items: Sequence[T]) -> list[bytes]:
        try:
            return self._topic.codec.encode_many(items)
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"{self._topic!r}: item: {error}") from None

    async def publish(
        self, item: T, /, *, headers: Mapping[str, str] | None = None
    ) -> Token | None:
        """Publish one event; return when the provider has accepted it.

        Args:
            item: the event, of the namespace's item type.
            headers: texts that are delivered with the event.

        Returns:
            The token of the event. None: the provider does not know the token at once, or the
                caller is a client.

        Raises:
            TypeError: the item does not have the namespace's type.
            ValueError: the event is larger than a message may be.
            StreamError: the mapper has no queue for the stream.
            QueueFull: the queue had no room for `enqueue_wait_s`, or too many bytes wait for it.
            QueueUnavailable: the queue could not be reached for `enqueue_wait_s`.
            PublishUnknown: it is not known whether the event is stored.
            NotInCluster: the silo or client has ended; nothing was sent.
        """
        publisher = publisher_of(self._runtime, self._topic.provider)
        if headers is not None:
            check_headers(headers)
        return await publisher.publish(self.id, [self._encode(item)], headers)

    def publish_with(
        self, state: State[Any], item: T, /, *, headers: Mapping[str, str] | None = None
    ) -> None:
        """Publish one event together with the next write of a state: both happen, or neither.

        Call this in a grain; nothing is awaited. The event is stored in the row of the state, and
        sent after that row is written: with `commit_with`, before the delivery is acknowledged;
        otherwise in the background. The event has a number of that state, so its queue stores it
        once, however often it is sent. A handler that fails leaves no event behind. See [The
        outbox](../concepts/streams.md#the-outbox-events-exactly-once).

        Args:
            state: a state of the calling grain, such as `self.tally`.
            item: the event, of the namespace's item type.
            headers: texts that are delivered with the event.

        Raises:
            TypeError: `state` is no state, or the item has the wrong type.
            ValueError: the event is larger than a message may be.
            ConfigError: the provider has no `DEDUP`, or the caller is no grain.
            StreamError: the mapper has no queue for the stream.
            QueueFull: too many events or bytes of this state wait (`OUTBOX_EVENTS_MAX`,
                `OUTBOX_BYTES_MAX`).
        """
        if not isinstance(state, State):
            raise TypeError(
                f"publish_with({state!r}, ...): give a state of the grain, such as `self.tally`"
            )
        if self._runtime.gateway is not None:
            raise ConfigError("publish_with is for grains: a client has no state")
        if headers is not None:
            check_headers(headers)
        body = self._encode(item)
        outbox_of(state, self._runtime.part).add(self.provider, self.id, body, headers)

    async def publish_many(
        self, items: Iterable[T], /, *, headers: Mapping[str, str] | None = None
    ) -> Token | None:
        """Publish events in order.

        The events are sent in messages of at most `publish_items_max` events and
        `publish_bytes_max` bytes. A client uses the default options for this, not the options of
        the silos. If one message fails, the messages before it stay published and no later message
        is sent. `accepted_events` of the error is the number of published events.

        Args:
            items: the events, of the namespace's item type.
            headers: texts that are delivered with each event.

        Returns:
            The token of the last message, or None as for `publish`.

        Raises:
            Exception: the errors of `publish`.
        """
        publisher = publisher_of(self._runtime, self._topic.provider)
        if headers is not None:
            check_headers(headers)
        return await publisher.publish(self.id, self._encode_many(list(items)), headers)

    async def subscribe(
        self,
        handler: Handler[T] | BatchHandler[T],
        /,
        *,
        name: str = "",
        start: Start | None = None,
        retries: int | None = None,
        backoff: Backoff | None = None,
        give_up_on: tuple[type[Exception], ...] = (),
        on_give_up: GiveUpDecision | None = None,
        where: Callable[[Event[T]], bool] | None = None,
        ack: Literal["auto", "manual"] = "auto",
        commit_with: State[Any] | None = None,
    ) -> Subscription[T]:
        """Subscribe the calling grain; every event published after the call returns is delivered.

        The subscription is stored with the options below, and belongs to the grain in every
        activation. Subscribing again with the same handler and name sets its options anew.

        Args:
            handler: a method of the calling grain; the class docstring has its form.
            name: distinguishes subscriptions of one grain and handler.
            start: the first event (`Start`). None: a new subscription begins with the next event;
                an existing one continues at its position, even after a fault.
            retries: as for `@subscribe`.
            backoff: as for `@subscribe`.
            give_up_on: as for `@subscribe`.
            on_give_up: as for `@subscribe`.
            where: a filter as for `@subscribe`, but a static method of the grain's class, because
                it is stored by its name.
            ack: as for `@subscribe`. If you subscribe again with the other value, unacknowledged
                events are delivered again.
            commit_with: as for `@subscribe`, but a state of the calling grain, such as
                `self.tally`.

        Raises:
            ConfigError: an argument is not valid, `ack="manual"` is used with `where` or
                `commit_with`, a grain with `commit_with` is reentrant, or the grain is a stateless
                worker.
            DefinitionError: the handler cannot take the events; the error names file and line.
            StreamError: the namespace is implicit only. Or `ack="manual"` or `commit_with` is used,
                and the provider lacks `ORDERED` or `STABLE_TOKENS`.
        """
        grain = subscriber_of(handler)
        if self._topic.subscriptions == "implicit":
            raise StreamError(f"{self._topic!r} takes implicit subscriptions only")
        check_explicit(handler, self._topic.item, repr(self._topic))
        check_text("the name of a subscription", name)
        policy = policy_of(retries, backoff, give_up_on, on_give_up)
        check_ack(ack, handler, self._topic.name, where)
        committed = commit_name(commit_with, ack, grain, handler, self._topic.name)
        row = self._row(grain, handler, name, start_text(start), policy, where)
        row = msgspec.structs.replace(row, is_manual=ack == "manual", commit_with=committed)
        rendezvous = self.rendezvous_grain()
        consumer = local_consumer(grain)
        if consumer is not None:
            await consumer.on_joining(row.id)
        await rendezvous.add(row)
        if consumer is not None:
            consumer.on_added(row)
        return Subscription(rendezvous, str(self), row, grain)

    def _row(
        self,
        grain: Any,
        handler: Any,
        name: str,
        start: str,
        policy: FailurePolicy,
        where: object,
    ) -> SubscriptionRow:
        kind, handler_name = kind_of(type(grain)), handler.__name__
        return SubscriptionRow(
            id=subscription_id(self.provider, self.id, kind, grain.key, handler_name, name),
            grain_type=kind,
            grain_key=grain.key,
            handler=handler_name,
            is_batch=is_batch_handler(handler),
            start=start,
            name=name,
            policy=policy,
            where="" if where is None else name_filter(type(grain), where, f"{self._topic!r}"),
        )

    def consume(
        self,
        *,
        name: str = "",
        start: Start | None = None,
        events_max: int = 100,
        on_gap: Callable[[Gap], Awaitable[None]] | None = None,
        where: Callable[[Event[T]], bool] | None = None,
    ) -> StreamEvents[T]:
        """Read the stream in a program that is no grain, such as a web handler.

        ```python
        async with stream.consume(name="audit") as events:
            async for event in events:
                ...
        ```

        Every event published after the block has begun is delivered. An event is acknowledged when
        the loop asks for the next event, or when the block ends without an exception.
        Unacknowledged events are delivered again. The loop survives gateways and silos that end.

        Args:
            name: name of a subscription that stays when the program leaves. If two programs use one
                name, the newer one takes over. Without a name, the subscription ends with the
                block, or when the cluster hears nothing of the program for `consumer_silence_s`.
            start: as for `subscribe`.
            events_max: largest number of events that the program holds, 1 to 10,000; the cluster
                keeps the rest.
            on_gap: awaited with a `Gap` before the first event that follows lost events.
            where: a filter: takes an event, and returns True or False at once. Other events are
                acknowledged and not handed out. The program calls it. If it is a static method of a
                grain class, annotated as `Event[T]`, silos that host the class also call it before
                delivery.

        Raises:
            ConfigError: an argument is not valid.
            StreamError: the namespace takes implicit subscriptions only.
        """
        if self._topic.subscriptions == "implicit":
            raise StreamError(f"{self._topic!r} takes implicit subscriptions only")
        check_text("the name of a subscription", name)
        if name.startswith(EPHEMERAL):
            raise ConfigError(f"consume(name={name!r}): the name must not begin with {EPHEMERAL!r}")
        if type(events_max) is not int or not 1 <= events_max <= EVENTS_MAX:
            raise ConfigError(
                f"consume(events_max={events_max!r}): give a whole number from 1 to {EVENTS_MAX:,}"
            )
        if where is not None and (wrong := wrong_filter(where)):
            raise ConfigError(f"consume: {wrong}")
        given = name or f"{EPHEMERAL}{self._runtime.new_name()}"
        return StreamEvents(self._outside(given, start_text(start), events_max, on_gap, where))

    def _outside(
        self,
        name: str,
        start: str,
        events_max: int,
        on_gap: Callable[[Gap], Awaitable[None]] | None,
        where: Where | None,
    ) -> Outside:
        provider, key = self.provider, inbox_key(self.provider, self.id, name)
        row = SubscriptionRow(
            id=inbox_id(provider, self.id, name),
            grain_type=inbox_name(provider),
            grain_key=key,
            handler="",
            is_batch=True,
            start=start,
            name=name,
            is_ephemeral=is_ephemeral(name),
            where="" if where is None else find_name(where, self._topic.item),
        )
        return Outside(
            row.id,
            self.id,
            self._runtime.grain(inbox_of(provider), key),
            lambda: self.rendezvous_grain().join(row),
            self._topic.codec,
            self._runtime,
            events_max,
            on_gap,
            where,
        )

    async def subscriptions(self, grain: Grain | None = None, /) -> list[Subscription[T]]:
        """Return the subscriptions of the stream, or the explicit ones of a grain:
        `subscriptions(self)`.

        Without an argument, the list has the explicit subscriptions of grains, those of programs,
        and the implicit ones. Each handle has the state of this moment.

        Args:
            grain: the grain itself. None: all subscriptions.

        Raises:
            TypeError: the argument is not the grain itself; a reference is not allowed.
        """
        rendezvous, label = self.rendezvous_grain(), str(self)
        if grain is None:
            return [Subscription(rendezvous, label, row) for row in await rendezvous.everyone()]
        if not is_grain(grain):
            raise TypeError(
                f"subscriptions({grain!r}): give the grain itself: `subscriptions(self)`"
            )
        kind, key = kind_of(type(grain)), grain.key
        return [
            Subscription(rendezvous, label, row, grain)
            for row in await rendezvous.rows()
            if (row.grain_type, row.grain_key) == (kind, key) and not is_implicit(row.id)
        ]

    def rendezvous_grain(self) -> Rendezvous:
        """Return the grain that keeps the stream's explicit subscriptions; for the runtime's own
        use."""
        rendezvous: Rendezvous = self._runtime.grain(
            rendezvous_of(self._topic.provider), rendezvous_key(self._topic.provider, self.id)
        )
        return rendezvous


def subscription_id(
    provider: str, stream: StreamId, kind: str, key: str, handler: str, name: str
) -> str:
    """Id of an explicit subscription; different for each stream, grain, handler and name."""
    parts = (provider, stream.namespace, stream.key, kind, key, handler, name)
    return "/".join(("explicit", *(quote(part, safe=": @#") for part in parts)))


def parse_subscription_id(subscription: str) -> tuple[str, StreamId]:
    """Provider and stream of an explicit subscription. Raises ValueError: the id has another
    form."""
    kind, *parts = subscription.split("/")
    if kind != "explicit" or len(parts) != 7:
        raise ValueError(f"{subscription!r} is not the id of an explicit subscription")
    provider, namespace, key = (unquote(part) for part in parts[:3])
    return provider, StreamId(namespace, key)


def policy_of(
    retries: int | None,
    backoff: Backoff | None,
    give_up_on: tuple[type[Exception], ...],
    on_give_up: GiveUpDecision | None,
) -> FailurePolicy:
    """Return the policy of an explicit subscription.

    Raises ConfigError if a value is not valid.
    """
    if wrong := wrong_policy(retries, backoff, give_up_on, on_give_up):
        raise ConfigError(f"subscribe: {wrong}")
    return FailurePolicy(retries, backoff, type_names(give_up_on), on_give_up)


def check_ack(ack: str, handler: Any, namespace: str, where: object) -> None:
    """Raise ConfigError for options that cannot be combined with manual acknowledgement."""
    if ack not in ("auto", "manual"):
        raise ConfigError(f"subscribe: ack is {ack!r}: write 'auto' or 'manual'")
    if ack == "manual" and where is not None:
        raise ConfigError(
            'subscribe: ack="manual" excludes `where`, because nothing would acknowledge the '
            "events that the filter drops: filter in the handler"
        )
    if ack == "manual" and commits(handler, namespace):
        raise ConfigError(
            f"subscribe: {label_of(handler)} has commit_with, which acknowledges the events that "
            'it has written and so excludes ack="manual": give another handler, or omit ack='
        )


def subscriber_of(handler: Any) -> Any:
    """Return the grain whose method a handler is. Raises ConfigError if it cannot subscribe."""
    grain: Any = getattr(handler, "__self__", None)
    if not is_grain(grain):
        raise ConfigError(f"subscribe({handler!r}): give a method of the subscribing grain")
    if is_stateless_worker(type(grain)):
        raise ConfigError(
            f"subscribe: {label_of(handler)}: a stateless worker cannot subscribe, because a silo "
            "has several activations of one key: subscribe in a grain of another class, which "
            "calls the workers"
        )
    return grain


def commit_name(state: object, ack: str, grain: Any, handler: Any, namespace: str) -> str:
    """The name of the state that is written with the position, or "" if there is none.

    Raises ConfigError: it is no state of the grain, or does not go with the other options.
    """
    if state is None:
        return ""
    if ack == "manual":
        raise ConfigError(
            "subscribe: commit_with acknowledges the events that it has written and so excludes "
            'ack="manual": remove one of them'
        )
    label, cls = label_of(handler), type(grain)
    if commits(handler, namespace):
        raise ConfigError(
            f"subscribe: the mark of {label} already has commit_with: omit commit_with here"
        )
    if is_reentrant(cls):
        raise ConfigError(
            f"subscribe: {label}: commit_with excludes every other turn, so the grain cannot be "
            "reentrant"
        )
    for name, own in states_of(grain).items():
        if own is state:
            return name
    raise ConfigError(
        f"subscribe: {label}: commit_with must be a state of the calling {cls.__name__}, such as "
        f"`self.tally`, not {state!r}"
    )


def publisher_of(runtime: Opener, provider: str) -> Publisher:
    """The publisher of a silo or client: its own provider, or the gateway of a client.

    Raises NotInCluster (it has ended: nothing is sent), ConfigError (no such provider).
    """
    if runtime.gateway is None:
        runtime.check_running()
        publisher: Publisher = runtime.part(provider)
        return publisher
    return GatewayPublisher(runtime.gateway, provider)
