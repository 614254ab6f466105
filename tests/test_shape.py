"""The shape of the code: imports point one way, sizes have limits, and only the seams read the
clock and chance and open sockets."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.classes import definitions, methods_of, size_of, text_of, texts
from tests.imports import (
    FOLDERS,
    ROOT,
    Look,
    files,
    imported,
    importers,
    imports_in,
    look,
    look_at,
    module_of,
    sources,
)
from tests.mutants.rooms import ROOMS

MAY_IMPORT = {
    "runtime": {"runtime"},
    "streams": {"runtime", "streams"},
    "providers": {"runtime", "streams", "providers"},
    "balancers": {"runtime", "streams", "balancers"},
    "console": set(FOLDERS),
    "tests": {"runtime", "streams", "providers", "balancers"},
    "examples": {"runtime", "streams", "providers", "balancers"},
}
OWN = {"tests": "tests.sim.suites", "examples": "examples.flights"}
"""The only modules that programs beside the product import from the root. The product imports
none."""
AT_ROOT = {*FOLDERS, "tests", "examples", "benchmarks"}
MODULE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
IRREGULAR = {
    *("begun", "bought", "broken", "brought", "built", "caught", "chosen", "dealt", "done"),
    *("drawn", "driven", "fallen", "felt", "forgotten", "frozen", "given", "gone", "got", "grown"),
    *("heard", "held", "hidden", "kept", "known", "laid", "led", "lent", "lost", "made", "meant"),
    *("met", "paid", "said", "seen", "sent", "shown", "sold", "sought", "spent", "stolen"),
    *("stood", "stuck", "swept", "taken", "thrown", "told", "torn", "understood", "won", "written"),
}
VERBS_IN_ED = {
    "embed",
    "exceed",
    "feed",
    "heed",
    "need",
    "proceed",
    "seed",
    "shed",
    "speed",
    "succeed",
}
MARKS = {"isolated", "shielded"}
"""Decorators that mark methods."""
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|for now|placeholder|simplified version)\b")
CLOCK_AND_DICE = {
    *("time", "random", "uuid", "secrets", "os.urandom"),
    *("datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
}
# env reads the clock; the simulator's env and loop replace it; the console shows wall time
MAY_READ_CLOCK = {
    "runtime/millstream/runtime/env.py",
    "runtime/millstream/runtime/testing/world/env.py",
}
OPENERS = {
    *("create_connection", "create_server", "create_datagram_endpoint", "open_connection"),
    *("start_server", "create_unix_connection", "create_unix_server", "open_unix_connection"),
}
SOCKETS = {"socket", "ssl", "selectors", "socketserver", *OPENERS}
# the transport, its contexts of TLS, addresses, which resolve names and numbers, and connections of
# a driver, which are cut if the server is silent
MAY_OPEN_SOCKETS = {
    "runtime/millstream/runtime/postgres/connections.py",
    "runtime/millstream/runtime/wire/address.py",
    "runtime/millstream/runtime/wire/tls.py",
    "runtime/millstream/runtime/wire/transport.py",
}
SYNCING = {"os.fsync", "os.fdatasync", "os.pwrite", "os.pwritev", "os.posix_fallocate", "fcntl"}
# the disk seam, and two modules that write one small file before a silo has a disk
MAY_SYNC_FILES = {
    "runtime/millstream/runtime/disk/real.py",
    "runtime/millstream/runtime/wire/secret.py",
    "runtime/millstream/runtime/database/directory.py",
}
FORBIDDEN_NAMES = {"utils.py", "helpers.py", "common.py", "util.py", "helper.py", "misc.py"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


ALL = list(sources())


def may_import(folder: str, module: str) -> bool:
    root, *parts = module.split(".")
    if root == "millstream":
        return not parts or parts[0] in MAY_IMPORT[folder]
    return root not in AT_ROOT or (folder in OWN and module.startswith(OWN[folder]))


def test_modules_import_only_what_their_folder_may() -> None:
    for path in ALL:
        folder = path.relative_to(ROOT).parts[0]
        for module in imported(path):
            assert may_import(folder, module), f"{name_of(path)} imports {module}"


@pytest.mark.parametrize(
    ("folder", "module"),
    [
        ("console", "tests.sim.suites.runner"),
        ("streams", "millstream.providers.memory"),
        ("tests", "millstream.console.main"),
        ("tests", "tests.conditions"),
        ("examples", "millstream.console.gateway"),
        ("examples", "tests.sim.suites.runner"),
    ],
)
def test_an_import_that_the_folder_may_not_have_is_seen(folder: str, module: str) -> None:
    assert not may_import(folder, module)


def test_modules_and_their_functions_keep_their_size() -> None:
    for path in ALL:
        text = path.read_text()
        assert text.count("\n") <= MODULE_LINES_MAX, f"{name_of(path)} is too long: split by noun"
        for name, line, lines in look_at(path).functions:
            assert lines < FUNCTION_LINES_MAX, f"{name_of(path)}:{line} {name}"


SMALL_LINES = 80
SMALL = {
    "millstream.console.index.commands": "the arguments of a subcommand, without what it loads",
    "millstream.console.ledger.actions": "loads the commands when one is given",
    "millstream.console.readers": "commands of a noun of their own",
    "millstream.console.store": "commands of a noun of their own",
    "millstream.providers.generator.event_rate": "a core with tests of its own",
    "millstream.providers.generator.options": "public options",
    "millstream.providers.generator.sequence": "a core with tests of its own",
    "millstream.providers.ledger.alone.missing": "a core with tests of its own",
    "millstream.providers.memory.arrivals": "a part with tests of its own",
    "millstream.runtime.postgres.address": "a core with tests of its own",
    "millstream.runtime.cluster.clock_check": "a core with tests of its own",
    "millstream.runtime.database.mounts": "a core with tests of its own",
    "millstream.runtime.faults": "a seam for the code of users",
    "millstream.runtime.testing.world.faults": "public: `FaultPlan`",
    "millstream.runtime.wire.pulse": "a core with tests of its own",
    "millstream.streams.consumer.on_error": "a public mark",
    "millstream.streams.paused_streams": "public functions",
    "millstream.streams.staging.silo": "puts its package together; its importer is a layer above",
    "millstream.streams.stats": "a public function",
    "tests.sim.suites.call_moves": "a judge of the suite `calls`",
    "tests.sim.suites.call_balance": "a judge of the suite `calls`",
    "tests.sim.suites.call_pages": "a judge of the suite `calls`",
}
"""Small modules with one importer, each with its reason: a plug-in, a public module or a core."""
RE_EXPORTING = (
    "millstream.runtime.extending",
    "millstream.streams.extending",
    "millstream.streams.testing",
)


def test_a_small_module_has_more_than_one_importer_or_a_reason() -> None:
    cores = {ROOT / path for room in ROOMS.values() for path in room}
    found = set()
    for name, others in importers(RE_EXPORTING).items():
        path = files()[name]
        is_small = path.name != "__init__.py" and path.read_text().count("\n") < SMALL_LINES
        if is_small and len(others) == 1 and path not in cores:
            found.add(name)
    assert found == SMALL.keys(), "move it into its importer, or list it with a reason"


METHODS_MAX = 25
LARGE_CLASSES: dict[str, tuple[int, str]] = {
    "activation.Activation": (
        44,
        "one object for each live grain: a turn rule beside it would add 48 bytes to 112",
    ),
    "bench.AdapterBench": (30, "what the checks of adapters need again and again"),
    "bookie.Bookie": (37, "one directory: one method for each request, and its life"),
    "calls_suite.Account": (26, "a grain: one method for each call of the programs"),
    "catalog.Catalog": (35, "all activations: found, created, moved, outgrown and ended"),
    "cluster.NotedSilo": (43, "the silo of a simulation is a silo"),
    "cluster_bookies.ClusterBookies": (28, "the contract of bookies, and the view of their rows"),
    "committing.CommittingQueue": (
        31,
        "group commit: one method for each operation, and its stages",
    ),
    "contents.Contents": (26, "a core: messages with all indexes change together"),
    "core.PriorityCore": (34, "a core: one method for each operation"),
    "cursor.Cursor": (58, "a core: one method for each event and question of its agent"),
    "delivery.Delivery": (48, "a core: one method for each event and question of its driver"),
    "grain.QueueOwner": (33, "a grain: one method for each operation"),
    "journal.Journal": (26, "group commit: appends, syncs and segments of one directory"),
    "loop.SimLoop": (35, "the methods that asyncio asks of a loop"),
    "manager.QueueManager": (
        27,
        "the driver of ownership: one method for each change and question",
    ),
    "network.SimNetwork": (30, "the network, and the faults that tests ask for"),
    "partition.Partition": (31, "a core: one method for each operation of a group or a producer"),
    "provider.PersistentStreams": (
        28,
        "public: the stages of a provider, and what its parts ask of it",
    ),
    "queue.PriorityQueue": (26, "public: one method for each operation"),
    "queue_cache.QueueCache": (32, "a core: one method for each event and question of its agent"),
    "queue_grain.MemoryQueue": (35, "a grain: one method for each call of an adapter"),
    "queue_log.QueueLog": (34, "a core: one method for each call of its queue"),
    "queues.NotedLog": (34, "the log of a simulation is a log"),
    "queues.NotedQueue": (36, "the queue of a simulation is a queue"),
    "range.DirectoryRange": (30, "a core: one method for each event"),
    "reader.ReaderCore": (32, "a core: one method for each event"),
    "rendezvous.Rendezvous": (37, "a grain: one method for each call about subscriptions"),
    "silo.Silo": (42, "the public silo: its stages, and what clients and parts ask of it"),
    "simulated.SimDisk": (35, "the disk seam, and the faults that tests ask for"),
    "simulation.Simulation": (28, "public: all that a test asks of a run"),
    "suite.EmbeddedRun": (28, "a run of a suite is one of the suite of streams"),
    "suite.LedgerRun": (28, "a run of a suite is one of the suite of streams"),
    "suite.MemoryRun": (29, "a run of a suite is one of the suite of streams"),
    "suite.ReplicatedRun": (28, "a run of a suite is one of the suite of streams"),
    "workers.WorkerActivation": (51, "an activation that takes calls of others of its pool"),
}
"""Classes with more methods than the limit: their largest size, and the reason. Inherited methods
and functions that use the private fields of a class count."""


def last_two(name: str) -> str:
    return ".".join(name.split(".")[-2:])


def test_classes_have_few_methods_or_a_reason() -> None:
    found = [(last_two(name), size_of(name)) for name in definitions()]
    large = sorted((name, size) for name, size in found if size > METHODS_MAX)
    assert [name for name, _ in large] == sorted(LARGE_CLASSES)
    grown = [(name, size) for name, size in large if size > LARGE_CLASSES[name][0]]
    assert not grown, "split it into objects: inheritance and functions that reach in are counted"


def test_methods_that_are_inherited_or_reach_in_are_counted() -> None:
    source = """
class Base:
    def one(self): ...
class Whole(Base):
    def two(self):
        self._x = 1
def outside(whole: Whole) -> int:
    return whole._x
def polite(whole: Whole) -> int:
    return whole.two()
f(*(1, 2), 3)
"""
    found = text_of(source, "module", "")
    assert [(one.name, [*one.methods]) for one in found.classes] == [
        ("Base", ["one"]),
        ("Whole", ["two"]),
    ]
    assert found.classes[1].bases == ("module.Base",)
    assert found.reaches == (("module.outside", "module.Whole"),)
    assert found.unpacking == (11,)
    name = "millstream.runtime.turns.activation.Activation"
    assert len(methods_of(name)) > len(definitions()[name].methods)


def test_no_call_unpacks_a_literal_tuple() -> None:
    assert {name: one.unpacking for name, one in texts().items() if one.unpacking} == {}


def is_foreign(module: str) -> bool:
    """Is a module not ours? (`millstream.streams.time` would not be the clock.)"""
    return not module.startswith("millstream")


def touched(found: Look) -> set[str]:
    """Return the names that a source imports (whole, first part, last part) and its attributes with
    their owners."""
    names = {f"{owner}.{name}" for owner, name in found.attributes}
    names |= {name for _, name in found.attributes} & OPENERS  # of any owner
    for full in filter(is_foreign, found.imported):
        names |= {full, full.split(".")[0], full.split(".")[-1]}
    return names


# a form of the HTTP API has the name of its command or result
FORMS = "providers/millstream/providers/priority/http/forms/"


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_class_of_a_folder_has_a_name_of_its_own(folder: str) -> None:
    places: dict[str, list[str]] = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not name.startswith(FORMS):
                places.setdefault(node.name, []).append(name)
    assert {name: paths for name, paths in places.items() if len(set(paths)) > 1} == {}


@pytest.mark.parametrize("name", ["_checked", "moved", "taken_over", "lost_at"])
def test_a_function_named_by_a_participle_is_seen(name: str) -> None:
    assert is_participle(name)


def test_functions_are_named_by_verbs() -> None:
    found = [
        f"{path.relative_to(ROOT).as_posix()}:{node.lineno}: {node.name}"
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and is_participle(node.name)
        and not is_property(node)
        and node.name not in MARKS
    ]
    assert not found, "name what the function does: `check` in place of `checked`"


def is_participle(name: str) -> bool:
    word = name.strip("_").split("_")[0]
    return word in IRREGULAR or (word.endswith("ed") and word not in VERBS_IN_ED)


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(one) for one in node.decorator_list)


def test_only_env_reads_clock_and_chance_and_only_the_transport_opens_sockets() -> None:
    for path in ALL:
        found = touched(look_at(path))
        clock = CLOCK_AND_DICE & found
        assert not clock or name_of(path) in MAY_READ_CLOCK, f"{name_of(path)} touches {clock}"
        sockets = SOCKETS & found
        assert not sockets or name_of(path) in MAY_OPEN_SOCKETS, f"{name_of(path)}: {sockets}"


def test_only_the_disk_seam_makes_files_durable() -> None:
    for path in ALL:
        syncing = SYNCING & touched(look_at(path))
        assert not syncing or name_of(path) in MAY_SYNC_FILES, f"{name_of(path)}: {syncing}"


@pytest.mark.parametrize("source", ["from os import fdatasync", "import os\nos.fsync(1)"])
def test_a_sync_past_the_seam_is_seen(source: str) -> None:
    assert SYNCING & touched(look(source, "millstream.streams"))


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from time import monotonic",
        "def f():\n    import random",
        "import datetime as dt\nx = dt.datetime.now()",
        "from datetime import datetime, UTC\nx = datetime.now(UTC)",
        "from datetime import date\nx = date.today()",
        "import os\nx = os.urandom(4)",
        "from os import urandom",
    ],
)
def test_a_reader_of_clock_or_chance_is_seen(source: str) -> None:
    assert CLOCK_AND_DICE & touched(look(source, "millstream.runtime"))


@pytest.mark.parametrize(
    "source",
    [
        "import socket",
        "from socket import socket",
        "import ssl",
        "async def f(loop):\n    await loop.create_connection(P, 'h', 1)",
        "import asyncio\nasync def f():\n    await asyncio.start_server(g, 'h', 1)",
        "from asyncio import open_connection",
    ],
)
def test_an_opener_of_sockets_is_seen(source: str) -> None:
    assert SOCKETS & touched(look(source, "millstream.runtime"))


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("from .cell import Cell", "millstream.streams.agent.cell"),
        ("from . import cell", "millstream.streams.agent.cell"),
        ("from ..api.stream import Stream", "millstream.streams.api.stream"),
        ("from ... import providers", "millstream.providers"),
        ("from ...providers.memory import adapter", "millstream.providers.memory.adapter"),
    ],
)
def test_a_relative_import_is_read_as_what_it_names(source: str, module: str) -> None:
    assert module in imports_in(source, "millstream.streams.agent")


TIMER_TIME = re.compile(r"\btimer\w*\.when\(")


def test_modules_keep_the_times_of_their_timers_themselves() -> None:
    """On uvloop, a timer whose time has come has no `when`."""
    for path in ALL:
        if "runtime/testing/" not in name_of(path):  # the simulator's own loop
            assert not TIMER_TIME.search(path.read_text()), name_of(path)


def test_modules_say_what_they_are_and_are_finished() -> None:
    for path in ALL:
        text = path.read_text()
        assert look_at(path).is_documented, f"{name_of(path)}: no docstring"
        assert not UNFINISHED.search(text), f"{name_of(path)}: words of unfinished work"
        assert path.name not in FORBIDDEN_NAMES, name_of(path)


def test_providers_and_their_siblings_do_not_import_each_other() -> None:
    base = ROOT / "providers" / "millstream" / "providers"
    for path in base.rglob("*.py"):
        own = path.relative_to(base).parts[0]
        for module in imported(path):
            parts = module.split(".")
            if parts[:2] == ["millstream", "providers"] and len(parts) > 2:
                assert parts[2] == own, f"{name_of(path)} imports {module}"


def test_no_root_init_breaks_the_namespace_package() -> None:
    assert not [p for p in ROOT.glob("*/millstream/__init__.py")]


OUTSIDE = [path for path in ALL if path.relative_to(ROOT).parts[0] != "runtime"]
INSIDE = {module_of(file) for file in (ROOT / "runtime/millstream/runtime").rglob("*.py")}
# modules of the runtime that code above it may import
SEAMS = {"", ".extending", ".database", ".postgres", ".wire", ".run", ".testing"}
OWN_NAMES = re.compile(r"(?<!\w)_+millstream\w*")


def test_what_is_built_on_the_runtime_knows_its_seams_alone() -> None:
    for path in OUTSIDE:
        assert not inside_of_runtime(imported(path)), name_of(path)
        found = OWN_NAMES.findall(path.read_text())
        assert not found, f"{name_of(path)} reaches into the runtime: {found}"


def inside_of_runtime(names: frozenset[str]) -> frozenset[str]:
    """Find inner modules of the runtime among the names; its seams do not count."""
    prefix = "millstream.runtime"
    inside = {name for name in INSIDE if name.removeprefix(prefix) not in SEAMS}
    return names & inside


PLANTED = {
    "from millstream.runtime.turns.request import Request": "millstream.runtime.turns.request",
    "from millstream.runtime import errors": "millstream.runtime.errors",
    "import millstream.runtime.testing.world.env": "millstream.runtime.testing.world.env",
}


@pytest.mark.parametrize("source", PLANTED)
def test_a_reach_into_the_runtime_is_seen(source: str) -> None:
    assert PLANTED[source] in inside_of_runtime(frozenset(imports_in(source, "millstream.streams")))
    assert OWN_NAMES.search("grain._millstream.table") and OWN_NAMES.search("x.__millstream_spec__")
    assert not OWN_NAMES.search("import pyspark_millstream")


PRIVATE_WAITS = re.compile(r"^(async )?def (until|spin)\(", re.MULTILINE)


def test_tests_wait_by_one_pair_of_functions() -> None:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.name != "conditions.py":
            found = PRIVATE_WAITS.search(path.read_text())
            assert not found, f"{name_of(path)}: import it from tests.conditions"


BLOCKING_SLEEP = re.compile(r"\btime\.sleep\(|\bfrom time import .*\bsleep\b")


def test_tests_sleep_in_virtual_time_alone() -> None:
    """`tests/conftest.py` watches `asyncio.sleep`, but it cannot watch a thread that sleeps."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if (ROOT / "tests" / "real") not in path.parents:
            assert not BLOCKING_SLEEP.search(path.read_text()), f"{name_of(path)} sleeps"
    assert BLOCKING_SLEEP.search("    time" + ".sleep(0.01)")
