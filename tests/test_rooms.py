"""Packages form layers: a package imports only lower layers, and modules import each other in no
circle. The command line and the flights demo import public names only. Imports for types and inside
functions count."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

import pytest
from tests.classes import definitions, implementers
from tests.imports import ROOT, circles, graph, imported, imports_in

FLOORS: dict[str, tuple[str, ...]] = {
    "runtime": (
        "ground",
        "metrics",
        "disk",
        "database",
        "postgres",
        "codec",
        "definition",
        "wire",
        "turns",
        "calls",
        "cluster",
        "reminders",
        "silo",
        "client",
        "run",
        "extending",
        "testing",
    ),
    "streams": (
        "contracts",
        "failures",
        "insight",
        "publishing",
        "staging",
        "rewinding",
        "api",
        "ownership",
        "consumer",
        "inbox",
        "broadcast",
        "agent",
        "provider",
        "ground",
    ),
    "providers.ledger": (
        "protocol",
        "bookie",
        "metadata",
        "handle",
        "serving",
        "recovery",
        "scrubbing",
        "topic",
        "queues",
        "alone",
        "inspection",
        "ground",
    ),
    "providers.priority": (
        "core",
        "store",
        "redis",
        "postgres",
        "owner",
        "relay",
        "surface",
        "adapter",
        "ground",
        "jobs",
        "http",
    ),
}
"""Layers from the lowest to the highest. `ground` are the single modules beside the packages; in
streams these are the public names, above all packages."""
STRANGERS = {
    "runtime": {frozenset({"wire", "definition"}), frozenset({"silo", "client"})},
    "streams": {frozenset({"api", "ownership"})},
    "providers.ledger": {
        frozenset({"bookie", "metadata"}),
        frozenset({"bookie", "handle"}),
        frozenset({"queues", "alone"}),
    },
    "providers.priority": {frozenset({"jobs", "http"})},
}
"""Packages that must not import each other."""
ONE_IMPLEMENTER = {
    "millstream.providers.ledger.handle.context.LedgerRows": "one form of the overloaded `update`",
    "millstream.providers.ledger.recovery.auditor.Surroundings": "tests have another",
    "millstream.providers.ledger.topic.ledgers.Ledgers": "tests have ledgers in memory",
    "millstream.providers.ledger.topic.ledgers.TopicLedgerReader": "tests have ledgers in memory",
    "millstream.providers.ledger.topic.ledgers.TopicLedgerWriter": "tests have ledgers in memory",
    "millstream.streams.staging.desk.Enqueues": "the provider, layers above, implements it",
}
"""Private Protocols with one implementer in a layer below, with the reason for each."""
PACKAGES_BELOW_A_PROVIDER_MAX = 2


def room_of(folder: str, module: str) -> str:
    parts = module.removeprefix(f"millstream.{folder}.").split(".")
    return parts[0] if len(parts) > 1 or parts[0] in FLOORS[folder] else "ground"


def edges_of(folder: str) -> dict[str, set[str]]:
    """Return the modules of a folder or package, and the other modules in it that each imports."""
    prefix = f"millstream.{folder}."
    found = graph(folder.partition(".")[0])
    inside = {name for name in found if name.startswith(prefix)}
    return {name: found[name] & inside for name in inside}


def climbs(folder: str, edges: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Find imports of a higher layer, or of a package that the importer must not import."""
    floors, found = FLOORS[folder], set()
    prefix = f"millstream.{folder}."
    for name, others in edges.items():
        for other in others:
            own, theirs = room_of(folder, name), room_of(folder, other)
            is_up = floors.index(theirs) > floors.index(own)
            if is_up or frozenset({own, theirs}) in STRANGERS[folder]:
                found.add((name.removeprefix(prefix), other.removeprefix(prefix)))
    return found


@pytest.mark.parametrize("folder", FLOORS)
def test_imports_between_rooms_go_downwards(folder: str) -> None:
    assert not climbs(folder, edges_of(folder))


@pytest.mark.parametrize("folder", FLOORS)
def test_no_modules_import_each_other_in_a_round(folder: str) -> None:
    assert not circles(edges_of(folder))


@pytest.mark.parametrize("folder", FLOORS)
def test_room_is_on_a_floor(folder: str) -> None:
    base = ROOT / folder.partition(".")[0] / "millstream" / folder.replace(".", "/")
    rooms = {path.parent for path in base.rglob("*.py")} - {base}
    for room in rooms:
        assert room.relative_to(base).parts[0] in FLOORS[folder], room


def test_providers_have_few_levels_of_packages() -> None:
    base = ROOT / "providers" / "millstream" / "providers"
    for path in base.rglob("*.py"):
        levels = len(path.relative_to(base).parts) - 2  # without the provider and the module
        assert levels <= PACKAGES_BELOW_A_PROVIDER_MAX, path


FOLDERS_UPWARDS = (("runtime",), ("streams",), ("providers", "balancers"), ("console",))


def layer_of(module: str) -> tuple[int, str, int]:
    """Return the layer of a module: that of its folder, the part with layers, and the layer
    there."""
    name = module.removeprefix("millstream.")
    folder = name.partition(".")[0]
    rank = next((at for at, names in enumerate(FOLDERS_UPWARDS) if folder in names), 4)
    for part, floors in FLOORS.items():
        if name.startswith(f"{part}."):
            return rank, part, floors.index(room_of(part, module))
    return rank, "", 0


def is_below(module: str, other: str) -> bool:
    """Is a module in a lower layer than another module, which may therefore import it?"""
    (rank, part, floor), (rank_other, part_other, floor_other) = layer_of(module), layer_of(other)
    return rank < rank_other or (bool(part) and part == part_other and floor < floor_other)


def needless(protocol: str) -> str:
    """Return the only implementer of a Protocol if it is in a lower layer, so that the Protocol's
    user could name it."""
    found = implementers(protocol)
    own = definitions()[protocol].module
    is_one = len(found) == 1 and is_below(definitions()[found[0]].module, own)
    return found[0] if is_one else ""


def test_a_private_protocol_does_not_stand_for_one_class_of_a_layer_below() -> None:
    public = {name for face in FACES for name in importlib.import_module(face).__all__}
    protocols = [name for name, one in definitions().items() if one.is_protocol]
    private = [name for name in protocols if name.rpartition(".")[2] not in public]
    found = {name for name in private if needless(name)}
    assert found == ONE_IMPLEMENTER.keys()


def test_who_implements_a_protocol_is_seen() -> None:
    name = "millstream.runtime.disk.seam.Disk"
    found = {one.rpartition(".")[2] for one in implementers(name)}
    assert {"RealDisk", "SimDisk"} <= found
    assert is_below("millstream.runtime.wire.link", "millstream.runtime.silo.silo")
    assert is_below("millstream.runtime.silo.silo", "millstream.streams.contracts.queue")
    assert not is_below("millstream.runtime.silo.silo", "millstream.runtime.wire.link")
    assert not is_below("millstream.runtime.silo.silo", "millstream.runtime.silo.part")


PLANTED = {
    "a relative import": "from ..silo.assembly import SiloAssembly",
    "an absolute import": "import millstream.runtime.silo.assembly",
    "a name of a package": "from millstream.runtime.silo import assembly",
    "for types alone": "if TYPE_CHECKING:\n    from ..silo.assembly import SiloAssembly",
    "inside a function": "def f():\n    from ..silo.assembly import SiloAssembly",
}


@pytest.mark.parametrize("source", PLANTED.values(), ids=PLANTED)
def test_a_wrong_import_is_seen(source: str) -> None:
    edges = graph("runtime")
    name = "millstream.runtime.codec.rules"
    package = name.rpartition(".")[0]
    edges[name] |= imports_in(source, package) & edges.keys()
    assert ("codec.rules", "silo.assembly") in climbs("runtime", edges)
    assert any(name in group for group in circles(edges))


FACES = {
    "millstream.balancers",
    "millstream.providers.ledger",
    "millstream.providers.ledger.inspection",
    "millstream.providers.memory",
    "millstream.providers.postgres",
    "millstream.providers.priority",
    "millstream.providers.priority.http",
    "millstream.providers.priority.jobs",
    "millstream.providers.spark",
    "millstream.providers.spark.index",
    "millstream.providers.sqlite",
    "millstream.runtime",
    "millstream.runtime.extending",
    "millstream.runtime.run",
    "millstream.streams",
    "millstream.streams.extending",
}
"""Modules whose `__all__` is public."""
UNLISTED = {"millstream.runtime.__version__"}  # read from the package's metadata on demand
OUTSIDE = ("console", "examples/flights")


def inner(names: Iterable[str]) -> set[str]:
    """Find names of the product that are neither public modules nor public names."""
    found = set()
    for name in names:
        module, _, last = name.rpartition(".")
        is_ours = name.startswith("millstream.") and not name.startswith("millstream.console")
        if is_ours and name not in FACES | UNLISTED:
            is_public = module in FACES and last in importlib.import_module(module).__all__
            found |= set() if is_public else {name}
    return found


@pytest.mark.parametrize("place", OUTSIDE)
def test_the_command_line_and_the_demo_import_public_names_only(place: str) -> None:
    files = sorted((ROOT / place).rglob("*.py"))
    reaching = {str(file): inner(imported(file)) for file in files}
    assert files and not {name: found for name, found in reaching.items() if found}


@pytest.mark.parametrize(
    "source",
    [
        "from millstream.providers.ledger.protocol.record import LedgerRecord",
        "from millstream.providers.priority import surface",
        "def f():\n    from millstream.streams.agent import cell",
        "import millstream.runtime.errors",
    ],
)
def test_an_import_of_an_inner_name_is_seen(source: str) -> None:
    assert inner(imports_in(source, "millstream.console"))
