"""The names for code that is built on the runtime: parts of a silo, stores, membership tables and
queue adapters.

`millstream.streams` uses only these names and the public names of `millstream.runtime`. Parts find
here the stages of a silo (`SiloPart`), its services (`SiloServices`), system targets, extensions of
grains, marks of methods, durable files (`Disk`), codecs, and checks of texts. SQLite files have a
module of their own, `millstream.runtime.database`, since it loads SQLite, and so has PostgreSQL,
`millstream.runtime.postgres`. Messages between
processes are in `millstream.runtime.wire`. Silos as child processes are in
`millstream.runtime.run`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from .backoff import Backoff
from .calls.references import Gateway
from .calls.system_target import SystemTarget, Targets
from .client.client import Client
from .codec.codec import Codec, build_codec
from .codec.failures import answerable, describe
from .codec.hooks import register_hook as register_opened
from .codec.types import bare, show_hint, union_members
from .codec.unions import needs_wrappers
from .damage import DamageLog
from .definition.grain import (
    Contract,
    Program,
    is_reentrant,
    is_stateless_worker,
    states_of,
)
from .definition.grain_type import GrainType
from .definition.headers import check_headers
from .definition.markers import Declaration, Mark, add_mark, marks_of, open_to, stopping
from .definition.markers import isolated as isolated
from .definition.method import source_of
from .definition.reference import MethodReference, method_reference
from .definition.storage import refuse_stale
from .disk.real import RealDisk
from .disk.seam import DirLock, Disk, DiskFile, DiskFull, DiskThread, SyncFailed
from .disk.whole import read_file, replace_file
from .metrics.metric import Histogram, Metric, Sample
from .metrics.registry import MetricRegistry
from .options import check_fields, check_kind
from .plugins import load_plugin
from .public_names import publish, type_name
from .repeated import LineBudget
from .role import Role
from .sealed_rows import Sealed, open_row, seal, seal_content, unseal
from .silo.extended import ExtendedGrain, extension_at, extension_of, is_grain
from .silo.part import SiloPart
from .silo.services import (
    Clock,
    Extensions,
    GrainServices,
    Members,
    SiloServices,
    is_first_host,
    services_of,
)
from .tasks import Tasks
from .text import check_text, show_text, show_value, text_bytes
from .turns.budget import Budget
from .turns.runners import Runners
from .wire.address import SiloAddress
from .wire.certified_name import uri_of
from .wire.secret import secret_in_file

__all__ = [
    "Backoff",
    "Budget",
    "Clock",
    "Codec",
    "DamageLog",
    "Declaration",
    "DirLock",
    "Disk",
    "DiskFile",
    "DiskFull",
    "DiskThread",
    "ExtendedGrain",
    "Extensions",
    "Gateway",
    "GrainServices",
    "GrainType",
    "Histogram",
    "LineBudget",
    "Mark",
    "Members",
    "MethodReference",
    "Metric",
    "MetricRegistry",
    "Opener",
    "Program",
    "RealDisk",
    "Role",
    "Runners",
    "Sample",
    "Sealed",
    "SiloAddress",
    "SiloPart",
    "SiloServices",
    "SyncFailed",
    "SystemTarget",
    "Targets",
    "Tasks",
    "add_mark",
    "ask_gateway",
    "bare",
    "check_fields",
    "check_headers",
    "check_kind",
    "check_text",
    "codec_of",
    "encode_error",
    "extension_at",
    "extension_of",
    "is_first_host",
    "is_grain",
    "is_reentrant",
    "is_stateless_worker",
    "isolated",
    "kind_of",
    "load_plugin",
    "marks_of",
    "method_reference",
    "needs_wrappers",
    "open_row",
    "open_to",
    "publish",
    "read_file",
    "refuse_stale",
    "register_opened",
    "replace_file",
    "seal",
    "seal_content",
    "secret_in_file",
    "services_of",
    "show_hint",
    "show_text",
    "show_value",
    "source_of",
    "states_of",
    "stopping",
    "text_bytes",
    "type_name",
    "union_members",
    "unseal",
    "uri_of",
]

C = TypeVar("C", bound=Contract)
P = ParamSpec("P")
R = TypeVar("R")


class Opener(Protocol):
    """The inside of a silo or of a client, as `Openable.open` gets it."""

    @property
    def gateway(self) -> Gateway | None:
        """The gateway calls of a client; None in a silo."""
        ...

    def grain(self, cls: type[C], key: str, /) -> C:
        """Return a typed reference to a grain.

        Args:
            cls: The grain class, or a contract.
            key: The key of the grain.
        """
        ...

    def part(self, name: str, /) -> Any:
        """Return a part of the silo.

        Args:
            name: The name, as in `Silo(streams=..., parts=...)`.

        Raises:
            ConfigError: There is no such part. A client has no parts.
        """
        ...

    def new_name(self) -> str:
        """Return a name that is unique in the life of the cluster."""
        ...

    def check_running(self) -> None:
        """Raise NotInCluster unless the silo or client is started and has not ended."""
        ...

    def decode_error(self, data: bytes, /) -> Exception:
        """Return the exception that `encode_error` encoded.

        Args:
            data: The result of `encode_error`.

        Returns:
            A fresh exception of the same type, or a GrainError if the type is unknown here.
        """
        ...


def codec_of(hint: Any, where: str) -> Codec[Any]:
    """Build the codec of an annotation.

    It costs about 100 µs, so build one codec for each annotation and keep it.

    Args:
        hint: The annotation, such as `list[Flight]`.
        where: The beginning of each error text, such as `orders.py:12: field items`.

    Raises:
        DefinitionError: A part of the type cannot be encoded.
        NameError: A name in the annotation is not defined yet.
    """
    return build_codec(hint, where)


def encode_error(error: BaseException, where: str) -> bytes:
    """Encode an exception, with its traceback, as bytes for `SiloServices.decode_error`.

    It costs about 100 µs. An attribute that cannot be sent is left out, with a note.

    Args:
        error: The exception.
        where: The heading of its traceback, such as `Airport/BOS handling flights/BOS`.
    """
    return describe(answerable(error), where)


def kind_of(cls: type[Contract]) -> str:
    """Return the name of a grain class on the wire and in stores.

    Args:
        cls: A grain class, or a contract, which has the name of its grain class.
    """
    return cls.__millstream_type__.name


async def ask_gateway(
    client: Client,
    name: str,
    target: str,
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> R:
    """Call a method of a system target from a client, through a gateway.

    ```python
    figures = await ask_gateway(client, "", "$limits", Limits.figures)
    ```

    Calls with one `name` use one gateway, and keep their order, as long as that gateway works. If
    the gateway has no such target, the client asks the other gateways. Errors of the method reach
    the caller.

    Args:
        client: A connected client.
        name: The name that chooses the gateway, such as that of a queue. Empty: any.
        target: The name of the system target, which begins with `$`.
        method: The method, as the function in the class of the target.
        args: The arguments of the method. They are given by position.
        kwargs: Not allowed.

    Returns:
        The result of the method.

    Raises:
        CallTimeout: The deadline has passed. The outcome is unknown.
        SiloUnavailable: No gateway answers, or the connection broke.
        NotInCluster: The client is not connected, or was closed.
        NotAllowed: The method is not open to clients, or to this one.
    """
    return await client.gateway.call(name, target, method, *args, **kwargs)


publish(__name__)
