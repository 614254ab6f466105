"""What is built on the runtime uses this, and the public names of `millstream.runtime`.

What loads SQLite is a seam beside it, `millstream.runtime.database`.
Owns: nothing; it names what the inside gives to authors of parts: stages of a silo, system targets,
grain extensions, members, stores, tasks, the clock, files, codecs and marks. `millstream.streams`
is built on it, and on nothing else of the runtime's inside.
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
from .definition.grain import Contract, Program, is_reentrant, states_of
from .definition.grain_type import GrainType
from .definition.headers import check_headers
from .definition.markers import Declaration, Mark, add_mark, marks_of, open_to, stopping
from .definition.markers import isolated as isolated
from .definition.method import source_of
from .definition.storage import refuse_stale
from .disk.real import RealDisk
from .disk.seam import DirLock, Disk, DiskFile, DiskFull, DiskThread, SyncFailed
from .disk.whole import read_file, replace_file
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
    "LineBudget",
    "Mark",
    "Members",
    "Opener",
    "Program",
    "RealDisk",
    "Role",
    "Runners",
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
    "isolated",
    "kind_of",
    "load_plugin",
    "marks_of",
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
]

C = TypeVar("C", bound=Contract)
P = ParamSpec("P")
R = TypeVar("R")


class Opener(Protocol):
    """What `Openable.open` is given: the inside of a silo, or of a client."""

    @property
    def gateway(self) -> Gateway | None:
        """What reaches the cluster from outside; None in a silo."""
        ...

    def grain(self, cls: type[C], key: str, /) -> C:
        """A typed reference to a grain."""
        ...

    def part(self, name: str, /) -> Any:
        """The silo's part of a name. Raises ConfigError."""
        ...

    def new_name(self) -> str:
        """A name that nothing else in the life of the cluster has."""
        ...

    def check_running(self) -> None:
        """Raise NotInCluster unless started and not ended."""
        ...


def codec_of(hint: Any, where: str) -> Codec[Any]:
    """The codec of an annotation. Raises DefinitionError, which begins with `where`."""
    return build_codec(hint, where)


def encode_error(error: BaseException, where: str) -> bytes:
    """An exception as bytes, for `SiloServices.decode_error`; costs some 100 µs.

    `where` heads its traceback, such as `Airport/BOS handling flights/BOS`.
    """
    return describe(answerable(error), where)


def kind_of(cls: type[Contract]) -> str:
    """The name of a grain class on the wire and in stores."""
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
    """Call a system target of the gateway that serves `name`, by the method's function:
    `ask_gateway(client, "", "$limits", Limits.figures)`. Calls of one name keep their order.

    Arguments are given by position. Raises what the method raises, CallTimeout, SiloUnavailable,
    NotInCluster (the client was closed).
    """
    return await client.gateway.call(name, target, method, *args, **kwargs)


publish(__name__)
