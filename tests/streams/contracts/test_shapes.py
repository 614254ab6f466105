"""Plug-in objects that do not have the shape of their contract: the error, and its time."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import ConfigError, Grain, LocalCluster, Silo
from millstream.runtime.extending import SiloPart, SiloServices
from millstream.streams import (
    Capability,
    HashRingMapper,
    OutMessage,
    PersistentStreams,
    QueueAdapter,
    QueueAdapterFactory,
    QueueBalancer,
    QueueId,
    QueueMapper,
    QueueMessage,
    QueueReceiver,
    StreamId,
    Token,
)
from millstream.streams.contracts.shapes import require_shape


class Shape(Protocol):
    """A contract with one member of each kind."""

    @property
    def size(self) -> int: ...
    def look(self, key: str, /) -> str: ...
    async def save(self, key: str, data: bytes, fence: int = 0, /) -> None: ...
    async def aclose(self) -> None: ...


class Good:
    size = 1

    def look(self, key: str) -> str:
        return key

    async def save(self, key: str, data: bytes, fence: int = 0) -> None: ...

    async def aclose(self) -> None: ...


def told(obj: object, protocol: type[Any] = Shape) -> str:
    """Return the error of `require_shape` without its beginning; empty if there is none."""
    try:
        require_shape(obj, protocol, "the thing")
    except ConfigError as error:
        beginning = f"the thing: {type(obj).__name__} is not a {protocol.__name__}: "
        assert str(error).startswith(beginning)
        return str(error).removeprefix(beginning)
    return ""


def with_(**members: Any) -> object:
    """Make a good object with other members."""
    return type("Other", (Good,), members)()


def without(name: str) -> object:
    """Make a good object that lacks a member."""
    members = {key: value for key, value in vars(Good).items() if key != name}
    return type("Other", (), members)()


# --- named faults --------------------------------------------------------------------------------


def test_shape_accepts_an_object_that_has_every_member() -> None:
    assert told(Good()) == ""


@pytest.mark.parametrize("name", ["size", "look", "save", "aclose"])
def test_shape_names_a_member_that_is_missing(name: str) -> None:
    assert told(without(name)) == f"no `{name}`"


def test_shape_names_everything_at_once_in_the_order_of_the_contract() -> None:
    class Nothing: ...

    def save(self: object, key: str, data: bytes, fence: int = 0) -> None: ...

    async def aclose(self: object, force: bool) -> None: ...

    assert told(Nothing()) == "no `size`; no `look`; no `save`; no `aclose`"
    assert told(with_(look=5, save=save, aclose=aclose)) == (
        "`look` is not a method; `save` is not async; "
        "`aclose`: missing a required argument: 'force'"
    )


def test_shape_names_the_thing_the_class_and_the_contract() -> None:
    with pytest.raises(ConfigError) as caught:
        require_shape("text", Shape, "Silo(thing=...)")
    assert str(caught.value).startswith("Silo(thing=...): str is not a Shape: no `size`; ")


def test_shape_takes_none_for_a_missing_method() -> None:
    assert told(with_(look=None)) == "no `look`"


@pytest.mark.parametrize("value", ["text", 5, b"", [len]])
def test_shape_names_what_is_not_a_method(value: object) -> None:
    assert told(with_(look=value)) == "`look` is not a method"


def test_shape_names_a_method_that_is_not_async() -> None:
    def save(self: object, key: str, data: bytes, fence: int = 0) -> Awaitable[None]:
        raise AssertionError("never called")

    assert told(with_(save=save)) == "`save` is not async"


def test_shape_names_a_method_that_is_async_where_the_contract_is_not() -> None:
    async def look(self: object, key: str) -> str:
        return key

    assert told(with_(look=look)) == "`look` is async"
    assert told(with_(look=staticmethod(Good().save))) == "`look` is async"


def test_shape_names_a_method_that_takes_too_few_arguments() -> None:
    async def save(self: object, key: str, data: bytes) -> None: ...

    def look(self: object) -> str:
        return ""

    assert told(with_(save=save)) == "`save`: too many positional arguments"
    assert told(with_(look=look)) == "`look`: too many positional arguments"


def test_shape_names_an_argument_that_the_contract_does_not_give() -> None:
    async def save(self: object, key: str, data: bytes, fence: int, owner: str) -> None: ...

    def look(self: object, key: str, *, deep: bool) -> str:
        return ""

    assert told(with_(save=save)) == "`save`: missing a required argument: 'owner'"
    assert "'deep'" in told(with_(look=look))


def test_shape_names_an_argument_that_the_contract_gives_only_sometimes() -> None:
    async def save(self: object, key: str, data: bytes, fence: int) -> None: ...

    assert told(with_(save=save)) == "`save`: missing a required argument: 'fence'"


def test_shape_names_a_class_that_is_given_in_place_of_an_object() -> None:
    assert told(Good) == (
        "`look`: missing a required argument: 'key'; "
        "`save`: missing a required argument: 'data'; "
        "`aclose`: missing a required argument: 'self'"
    )


def test_shape_names_a_property_that_fails_with_an_attribute_error() -> None:
    def size(self: object) -> int:
        raise AttributeError("not opened yet")

    assert told(with_(size=property(size))) == "no `size`"


# --- accepted objects ----------------------------------------------------------------------------


def test_shape_accepts_parameters_of_other_names_and_more_optional_ones() -> None:
    async def save(
        self: object, k: str, d: bytes, f: int = 0, deep: bool = False, *, owner: str = ""
    ) -> None: ...

    def look(self: object, what: str, /, *more: str, **options: str) -> str:
        return what

    assert told(with_(save=save, look=look)) == ""


def test_shape_accepts_a_method_that_takes_anything() -> None:
    async def anything(self: object, *args: Any, **kwargs: Any) -> None: ...

    assert told(with_(save=anything, aclose=anything)) == ""


def test_shape_accepts_a_property_in_every_form() -> None:
    instance = Good()
    instance.size = 5
    assert told(instance) == ""
    assert told(with_(size=None)) == ""
    assert told(with_(size=property(lambda self: 1))) == ""


def test_shape_accepts_static_methods_class_methods_and_partials() -> None:
    async def save(key: str, data: bytes, fence: int = 0) -> None: ...

    async def save_for(owner: str, key: str, data: bytes, fence: int = 0) -> None: ...

    def look(cls: type, key: str) -> str:
        return key

    assert told(with_(save=staticmethod(save), look=classmethod(look))) == ""
    held: Any = Good()
    held.save = functools.partial(save_for, "me")
    assert told(held) == ""


def test_shape_accepts_a_builtin_without_a_signature() -> None:
    with pytest.raises(ValueError, match="no signature"):
        inspect.signature(min)
    assert told(with_(look=min)) == ""


def test_shape_accepts_a_wrapped_method_by_the_signature_of_the_wrapper() -> None:
    def logged(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        async def wrapper(*args: Any) -> Any:
            return await method(*args)

        return wrapper

    async def too_few(self: object, key: str) -> None: ...

    assert told(with_(save=logged(Good.save))) == ""
    assert told(with_(save=logged(too_few))) == "`save`: too many positional arguments"


def test_shape_leaves_members_with_an_underscore_and_more_members_alone() -> None:
    class Private(Protocol):
        def _inner(self) -> None: ...
        def look(self, key: str, /) -> str: ...

    assert told(with_(more=1), Private) == ""


def test_shape_calls_nothing() -> None:
    async def save(self: object, key: str, data: bytes, fence: int = 0) -> None:
        raise AssertionError("called")

    def look(self: object, key: str) -> str:
        raise AssertionError("called")

    assert told(with_(save=save, look=look)) == ""


def method_of(required: int, optional: int, is_open: bool) -> Any:
    """Make a method with this number of parameters."""
    names = [f"a{n}" for n in range(required)] + [f"b{n}=None" for n in range(optional)]
    namespace: dict[str, Any] = {}
    arguments = ", ".join(["self", *names, *(["*rest"] if is_open else [])])
    exec(f"def method({arguments}): ...", namespace)
    return namespace["method"]


COUNTS = st.integers(0, 4)


@given(COUNTS, COUNTS, COUNTS, COUNTS, st.booleans())
def test_shape_accepts_exactly_the_methods_that_every_call_of_the_contract_fits(
    wanted: int, wanted_more: int, required: int, optional: int, is_open: bool
) -> None:
    protocol = type("Wanted", (), {"method": method_of(wanted, wanted_more, False)})
    found = type("Found", (), {"method": method_of(required, optional, is_open)})()
    most = wanted + wanted_more
    fits = required <= wanted and (is_open or required + optional >= most)
    assert (told(found, protocol) == "") is fits


# --- the contracts of streams --------------------------------------------------------------------


class Queues:
    """A well-formed factory with a given adapter."""

    capabilities = frozenset({Capability.ORDERED, Capability.STABLE_TOKENS})

    def __init__(self, adapter: object) -> None:
        self._adapter = adapter

    async def open(self, name: str, context: object) -> Any:
        return self._adapter


class Receiver:
    async def start(self, after: Token | None) -> None: ...

    async def read(self, events: int, size: int, wait_s: float) -> Sequence[QueueMessage]:
        return []

    async def ack(self, upto: Token | None, also: Sequence[Token] = ()) -> None: ...

    async def release(self, tokens: Sequence[Token], delay_s: float, has_run: bool) -> None: ...
    async def extend(self, tokens: Sequence[Token], lease_s: float) -> Sequence[Token]:
        return ()

    async def aclose(self) -> None: ...


class Adapter:
    """Has parameters of other names, and one more."""

    def __init__(self) -> None:
        self.closed = 0

    async def enqueue(
        self, where: QueueId, what: OutMessage, epoch: int, urgent: bool = False
    ) -> Token | None:
        return None

    def receiver(self, where: QueueId, epoch: int) -> Receiver:
        return Receiver()

    async def aclose(self) -> None:
        self.closed += 1


class Malformed:
    """Lacks `enqueue`; its receiver has no epoch, and its close is not async."""

    def receiver(self, queue: QueueId) -> Receiver:
        return Receiver()

    def aclose(self) -> None: ...


MALFORMED = (
    "the adapter of stream provider 'default': Malformed is not a QueueAdapter: "
    "no `enqueue`; `receiver`: too many positional arguments; `aclose` is not async"
)


def provider(queues: Any) -> PersistentStreams:
    return PersistentStreams(
        queues, mapper=HashRingMapper(queues=1), balancer=DeploymentBalancer(rebalance_delay_s=0)
    )


@pytest.mark.parametrize(
    ("obj", "protocol"),
    [
        (Queues(None), QueueAdapterFactory),
        (MemoryQueues(), QueueAdapterFactory),
        (Adapter(), QueueAdapter),
        (Receiver(), QueueReceiver),
        (HashRingMapper(queues=1), QueueMapper),
        (DeploymentBalancer(), QueueBalancer),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_shape_accepts_plug_ins_that_keep_their_contract(obj: object, protocol: type[Any]) -> None:
    assert told(obj, protocol) == ""


def test_shape_names_what_a_receiver_lacks() -> None:
    class Half:
        async def start(self) -> None: ...

        async def read(self, events: int, size: int, *, wait_s: float) -> list[QueueMessage]:
            return []

        def release(self, tokens: Sequence[Token], delay_s: float, has_run: bool) -> None: ...

    assert told(Half(), QueueReceiver) == (
        "`start`: too many positional arguments; `read`: too many positional arguments; "
        "no `ack`; `release` is not async; no `extend`; no `aclose`"
    )


# --- through public names ------------------------------------------------------------------------


class Counter(Grain):
    async def one(self) -> int:
        return 1


async def test_silo_refuses_to_start_with_a_malformed_adapter_and_names_all_of_it() -> None:
    silo = Silo(grains=[Counter], streams={"default": provider(Queues(Malformed()))})
    with pytest.raises(ConfigError) as caught:
        async with silo:
            raise AssertionError("started")
    assert str(caught.value) == MALFORMED
    assert silo.assembly.turns.ended


async def test_silo_refuses_an_adapter_that_opens_its_receivers_late() -> None:
    class Late(Adapter):
        async def receiver(self, where: QueueId, epoch: int) -> Receiver:  # type: ignore[override]
            return Receiver()

    adapter = Late()
    with pytest.raises(ConfigError, match="Late is not a QueueAdapter: `receiver` is async$"):
        async with Silo(grains=[Counter], streams={"default": provider(Queues(adapter))}):
            raise AssertionError("started")
    assert adapter.closed == 1


async def test_silo_that_does_not_start_closes_the_adapters_of_every_provider_once() -> None:
    class Late(Adapter):
        async def receiver(self, where: QueueId, epoch: int) -> Receiver:  # type: ignore[override]
            return Receiver()

    adapters = [Adapter(), Adapter(), Late(), Adapter()]
    streams = {str(at): provider(Queues(adapter)) for at, adapter in enumerate(adapters)}
    with pytest.raises(ConfigError, match="the adapter of stream provider '2'"):
        async with Silo(grains=[Counter], streams=streams):
            raise AssertionError("started")
    assert [adapter.closed for adapter in adapters] == [1, 1, 1, 0]


async def test_silo_closes_the_adapters_when_a_provider_of_another_kind_does_not_start() -> None:
    class Failing(SiloPart):
        async def start(self, services: SiloServices, name: str, /) -> None:
            raise ConfigError("no such account")

    adapter = Adapter()
    streams: dict[str, Any] = {"first": provider(Queues(adapter)), "second": Failing()}
    with pytest.raises(ConfigError, match="no such account"):
        async with Silo(grains=[Counter], streams=streams):
            raise AssertionError("started")
    assert adapter.closed == 1


async def test_silo_closes_the_adapter_when_its_balancer_does_not_start() -> None:
    class Refusing:
        async def start(self, queues: object, silos: object, wanted: object) -> None:
            raise ConfigError("no silo has that name")

        async def aclose(self) -> None: ...

    adapter = Adapter()
    streams = PersistentStreams(Queues(adapter), balancer=Refusing())
    with pytest.raises(ConfigError, match="no silo has that name"):
        async with Silo(grains=[Counter], streams={"default": streams}):
            raise AssertionError("started")
    assert adapter.closed == 1


async def test_silo_says_why_it_does_not_start_even_if_an_adapter_cannot_be_closed() -> None:
    class Stuck(Adapter):
        async def receiver(self, where: QueueId, epoch: int) -> Receiver:  # type: ignore[override]
            return Receiver()

        async def aclose(self) -> None:
            raise OSError("already gone")

    with pytest.raises(ConfigError, match="Stuck is not a QueueAdapter"):
        async with Silo(grains=[Counter], streams={"default": provider(Queues(Stuck()))}):
            raise AssertionError("started")


async def test_silo_that_is_killed_closes_its_adapters_once() -> None:
    adapter = Adapter()
    silo = Silo(grains=[Counter], streams={"default": provider(Queues(adapter))})
    async with silo:
        await silo.kill()
    assert adapter.closed == 1


async def test_silo_names_the_provider_whose_adapter_is_malformed() -> None:
    streams = {"first": provider(Queues(Adapter())), "second": provider(Queues(Malformed()))}
    with pytest.raises(ConfigError, match="the adapter of stream provider 'second': Malformed"):
        async with Silo(grains=[Counter], streams=streams):
            raise AssertionError("started")


async def test_local_cluster_refuses_to_start_with_a_malformed_adapter() -> None:
    def streams() -> PersistentStreams:
        return provider(Queues(Malformed()))

    with pytest.raises(ConfigError) as caught:
        async with LocalCluster(grains=[Counter], silos=2, streams={"default": streams}):
            raise AssertionError("started")
    assert str(caught.value) == MALFORMED


async def test_silo_starts_with_a_well_formed_adapter_and_closes_it_once() -> None:
    adapter = Adapter()
    silo = Silo(grains=[Counter], streams={"default": provider(Queues(adapter))})
    async with silo:
        assert await silo.grain(Counter, "a").one() == 1
        assert adapter.closed == 0
    assert adapter.closed == 1


class NoOpen:
    capabilities = frozenset({Capability.OWN_POSITION})


class OpensAtOnce(NoOpen):
    def open(self, name: str, context: object) -> Adapter:
        return Adapter()


class OpensForNobody:
    async def open(self, name: str) -> Adapter:
        return Adapter()


@pytest.mark.parametrize(
    ("queues", "text"),
    [
        (NoOpen(), "NoOpen is not a QueueAdapterFactory: no `open`"),
        (OpensAtOnce(), "OpensAtOnce is not a QueueAdapterFactory: `open` is not async"),
        (
            OpensForNobody(),
            "OpensForNobody is not a QueueAdapterFactory: "
            "no `capabilities`; `open`: too many positional arguments",
        ),
        (
            MemoryQueues,
            "type is not a QueueAdapterFactory: `open`: missing a required argument: 'host'",
        ),
    ],
)
def test_streams_refuse_a_malformed_factory_when_they_are_made(queues: Any, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        provider(queues)
    assert str(caught.value) == f"PersistentStreams(queues): {text}"


@pytest.mark.parametrize(
    ("declared", "wrong"),
    [
        (frozenset({"ordered"}), "'ordered'"),
        (frozenset({Capability.ORDERED, "durable"}), "'durable'"),
        ("ordered", "'ordered'"),
        (None, "None"),
        (Capability.ORDERED, "Capability.ORDERED"),
    ],
    ids=["a text in a set", "a text among capabilities", "a text", "None", "one"],
)
def test_streams_refuse_capabilities_that_are_none(declared: Any, wrong: str) -> None:
    queues: Any = Queues(None)
    queues.capabilities = declared
    with pytest.raises(ConfigError) as caught:
        provider(queues)
    text = str(caught.value)
    assert text.startswith("PersistentStreams(queues): Queues.capabilities "), text
    assert wrong in text and "frozenset({Capability.ORDERED, ...})" in text, text


@pytest.mark.parametrize("kind", [set, frozenset, list, tuple])
def test_streams_take_capabilities_in_any_collection(kind: Callable[[Any], Any]) -> None:
    queues: Any = Queues(None)
    queues.capabilities = kind([Capability.OWN_POSITION])
    assert provider(queues).capabilities == frozenset({Capability.OWN_POSITION})


class MapsByName:
    def queues(self) -> list[QueueId]:
        return ["a"]

    def queue_for(self, namespace: str, key: str) -> QueueId:
        return "a"


class Maps:
    """A minimal mapper: `epoch` on the object, no positional-only marks."""

    def __init__(self) -> None:
        self.epoch = 1

    def queues(self) -> list[QueueId]:
        return ["a"]

    def queue_for(self, stream: StreamId) -> QueueId:
        return "a"


def test_streams_refuse_a_malformed_mapper_when_they_are_made() -> None:
    balancer, mapper = DeploymentBalancer(), MapsByName()
    with pytest.raises(ConfigError) as caught:
        PersistentStreams(Queues(None), mapper=mapper, balancer=balancer)  # type: ignore[arg-type]
    assert str(caught.value) == (
        "PersistentStreams(mapper=...): MapsByName is not a QueueMapper: "
        "no `epoch`; `queue_for`: missing a required argument: 'key'"
    )
    made = PersistentStreams(Queues(None), mapper=Maps(), balancer=balancer)
    assert list(made.mapper.queues()) == ["a"]


class BalancesAtOnce:
    def start(self, queues: object, silos: object, wanted: object) -> None: ...


def test_streams_refuse_a_malformed_balancer_when_they_are_made() -> None:
    balancer = BalancesAtOnce()
    with pytest.raises(ConfigError) as caught:
        PersistentStreams(Queues(None), balancer=balancer)  # type: ignore[arg-type]
    assert str(caught.value) == (
        "PersistentStreams(balancer=...): BalancesAtOnce is not a QueueBalancer: "
        "`start` is not async; no `aclose`"
    )


def test_streams_refuse_a_missing_balancer_by_name() -> None:
    with pytest.raises(ConfigError, match="balancer.*no `start`; no `aclose`"):
        PersistentStreams(Queues(None), balancer=None)  # type: ignore[arg-type]
