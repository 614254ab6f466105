"""Pages agree with the code: programs run, links and paths exist, defaults are equal."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.imports import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
LINKING = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
FOLDERS = ("runtime", "streams", "providers", "tests", "console", "balancers", "examples")
PARTS = (
    "millstream.runtime",
    "millstream.runtime.database",
    "millstream.runtime.extending",
    "millstream.streams",
    "millstream.streams.extending",
    "millstream.balancers",
)
REQUIRED = "required"
# Fields without a default whose option has one, which depends on the DataFrame.
FROM_FRAME = {"WriteOptions": {"value_columns": "all columns"}}

RUNNABLE = re.compile(
    r"^```python title=\"program\.py\"\n(.*?)^```\n(?:```text\n(.*?)^```)?", re.M | re.S
)
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| .+\|$", re.M)
LIMIT = re.compile(r"^\| [^|]+ \| `([\w.]+)`[^|]* \| `([\w.]+)` \| .+\|$", re.M)
LIMITS = LIMIT.findall((DOCS / "reference" / "limits.md").read_text())

# Sections of the page of options, and the modules of their classes.
OPTION_CLASSES = {
    "Backoff": "millstream.streams",
    "BookieOptions": "millstream.providers.ledger",
    "RedisOptions": "millstream.providers.priority.redis",
    "RecoveryOptions": "millstream.providers.ledger",
    "ScrubOptions": "millstream.providers.ledger",
    "BroadcastOptions": "millstream.streams",
    "CacheLimits": "millstream.streams",
    "DeliveryOptions": "millstream.streams",
    "MessageLimits": "millstream.streams",
    "FlowOptions": "millstream.streams",
    "GeneratorOptions": "millstream.providers.generator",
    "HttpOptions": "millstream.providers.priority.http",
    "JobOptions": "millstream.providers.priority.jobs",
    "JobRetry": "millstream.providers.priority.jobs",
    "LedgerOptions": "millstream.providers.ledger",
    "LedgerTopicOptions": "millstream.providers.ledger",
    "LedgerTopicSettings": "millstream.providers.ledger",
    "MembershipOptions": "millstream.runtime",
    "MetricsOptions": "millstream.runtime",
    "PlacementOptions": "millstream.runtime",
    "PostgresOptions": "millstream.providers.postgres",
    "Rebalancing": "millstream.runtime",
    "MemoryOptions": "millstream.providers.memory",
    "OwnershipOptions": "millstream.streams",
    "DeadlineOptions": "millstream.providers.priority",
    "PriorityOptions": "millstream.providers.priority",
    "QueueSettings": "millstream.providers.priority",
    "RuntimeOptions": "millstream.runtime",
    "SendLimits": "millstream.streams",
    "TopicOptions": "millstream.providers.memory",
    "StoreLimits": "millstream.providers.priority",
    "StreamOptions": "millstream.streams",
    "WriteOptions": "pyspark_millstream.options",
    "ReadOptions": "pyspark_millstream.read_options",
    "IndexOptions": "millstream.providers.spark.index",
    "WriterOptions": "millstream.providers.sqlite",
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def programs() -> Iterator[Any]:
    for page in PAGES:
        for number, found in enumerate(RUNNABLE.finditer(page.read_text()), 1):
            yield pytest.param(*found.groups(default=""), id=f"{name_of(page)}-{number}")


def find(where: str) -> Any:
    """Import `package.module:name` or `package.module.name`; skip the test if it needs PySpark."""
    module, _, name = where.partition(":") if ":" in where else where.rpartition(".")
    if module.startswith("pyspark_millstream"):
        pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")
    return getattr(importlib.import_module(module), name)


def defaults_of(what: Any) -> dict[str, Any]:
    """Return the default of each argument; `REQUIRED` if there is none, a call for a factory."""
    found = {}
    fields = getattr(what, "__dataclass_fields__", {})
    factories = {name: field.default_factory for name, field in fields.items()}
    for name, parameter in inspect.signature(what).parameters.items():
        factory = factories.get(name, dataclasses.MISSING)
        if isinstance(factory, type):
            found[name] = f"{factory.__name__}()"
        else:
            is_given = parameter.default is not parameter.empty
            found[name] = parameter.default if is_given else REQUIRED
    return found


def shown(text: str) -> Any:
    """Return the value in a cell: a literal, a call like `Backoff()`, a name, or `required`."""
    text = text.strip("`")
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def is_shown(cell: str, value: Any) -> bool:
    written = shown(cell)
    if hasattr(value, "_fields"):  # a named tuple is shown as a call
        return bool(written == repr(value))
    if isinstance(value, int | float | str | None | bool | tuple):
        return type(written) is type(value) and written == value
    return bool(written == getattr(value, "name", None))  # a constant such as RANDOM


def section(text: str, heading: str) -> str:
    """Return the text under a heading, up to the next heading."""
    assert heading in text, heading
    return re.split(r"^#", text.partition(heading)[2], maxsplit=1, flags=re.M)[0]


@pytest.mark.parametrize(("program", "output"), list(programs()))
def test_a_runnable_program_prints_what_its_page_says(
    program: str,
    output: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "program.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("program.py", run_name="__main__")
    assert capsys.readouterr().out == output


def test_the_start_guide_has_programs_with_output() -> None:
    found = RUNNABLE.findall((DOCS / "guides" / "start.md").read_text())
    assert len(found) >= 4 and all(output for _, output in found)


@pytest.mark.parametrize("page", LINKING, ids=name_of)
def test_relative_links_lead_to_files(page: Path) -> None:
    for target in LINK.findall(CODE.sub("", FENCED.sub("", page.read_text()))):
        path = target.partition("#")[0]
        if path and "://" not in path:
            assert (page.parent / path).exists(), f"{name_of(page)} links to {target}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=name_of)
def test_paths_in_backticks_exist(page: Path) -> None:
    for text in CODE.findall(FENCED.sub("", page.read_text())):
        path = text.partition("::")[0]
        if path.startswith(tuple(f"{folder}/" for folder in (*FOLDERS, "benchmarks"))):
            assert (ROOT / path).exists(), f"{name_of(page)} names {path}"


def test_the_index_and_the_navigation_lead_to_every_page() -> None:
    """Decisions have an index of their own, to which the first page links."""
    indexes = [DOCS / "index.md", DOCS / "decisions" / "index.md"]
    linked = {
        (index.parent / target).resolve()
        for index in indexes
        for target in LINK.findall(index.read_text())
    }
    assert set(PAGES) - linked == {DOCS / "index.md"}
    navigation = (ROOT / "zensical.toml").read_text()
    decisions = set((DOCS / "decisions").glob("0*.md"))
    named = {page for page in PAGES if f'"{page.relative_to(DOCS)}"' in navigation}
    assert set(PAGES) - decisions - named == set()


def test_the_index_of_decisions_has_their_titles() -> None:
    index = DOCS / "decisions" / "index.md"
    rows = re.findall(r"^\| \[(\d{4})\]\((\S+)\) \| (.+) \|$", index.read_text(), re.M)
    assert [(name, f"# {number}: {title}") for number, name, title in rows] == [
        (page.name, page.read_text().partition("\n")[0])
        for page in sorted(index.parent.glob("0*.md"))
    ]


def test_the_gallery_has_every_example() -> None:
    text = (DOCS / "guides" / "examples.md").read_text()
    folders = {path.parent.name for path in (ROOT / "examples").glob("*/README.md")}
    assert set(re.findall(r"^README: `examples/(\w+)/README\.md`$", text, re.M)) == folders
    assert set(re.findall(r"^\| \[`(\w+)`\]\(#", text, re.M)) == folders


def test_every_option_class_has_its_section() -> None:
    headings = re.findall(r"^## `(\w+)`$", (DOCS / "reference" / "options.md").read_text(), re.M)
    exported = [
        name
        for part in (*PARTS, *sorted({m for m in OPTION_CLASSES.values() if "providers" in m}))
        for name in importlib.import_module(part).__all__
        if name.endswith(("Options", "Limits"))
    ]
    assert sorted(headings) == sorted(OPTION_CLASSES) and set(exported) <= set(headings)


@pytest.mark.parametrize("name", OPTION_CLASSES)
def test_the_table_of_an_option_class_has_its_fields_and_defaults(name: str) -> None:
    defaults = defaults_of(find(f"{OPTION_CLASSES[name]}:{name}")) | FROM_FRAME.get(name, {})
    text = (DOCS / "reference" / "options.md").read_text()
    rows = dict(ROW.findall(section(text, f"## `{name}`\n")))
    assert list(rows) == list(defaults)
    for option, cell in rows.items():
        assert is_shown(cell, defaults[option]), f"{name}.{option}: {cell}, not {defaults[option]}"


def test_every_limit_has_a_value_and_a_name() -> None:
    text = (DOCS / "reference" / "limits.md").read_text()
    tables = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(LIMITS) == sum("| limit |" not in line for line in tables)


@pytest.mark.parametrize(("cell", "where"), LIMITS)
def test_a_limit_has_the_value_of_the_code(cell: str, where: str) -> None:
    owner, _, name = where.rpartition(".")
    if owner in OPTION_CLASSES:
        value = defaults_of(find(f"{OPTION_CLASSES[owner]}:{owner}"))[name]
    elif owner == "TcpTransport":
        value = defaults_of(find("millstream.runtime:TcpTransport"))[name]
    else:
        value = find(where)
    assert is_shown(cell, value), f"{where}: {cell}, not {value}"


MISSING = re.findall(
    r"^\| .+ \| ((?:`[^`]+`(?:, )?)+) \|$", (DOCS / "not_there_yet.md").read_text(), re.M
)


def is_there(place: str) -> bool:
    """Does a file, a module, or a name of a module (`module:name`) exist?"""
    if (ROOT / place).exists():
        return True
    module, _, name = place.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError:
        return False
    return not name or hasattr(found, name)


def test_a_place_that_is_there_is_found() -> None:
    assert is_there("README.md") and is_there("millstream.runtime:Silo")
    assert is_there("millstream.providers.sqlite") and not is_there("millstream.runtime:Sylo")


@pytest.mark.parametrize("places", MISSING)
def test_what_the_page_says_is_not_there_is_not(places: str) -> None:
    assert not [place for place in CODE.findall(places) if is_there(place)]


TROUBLES = (DOCS / "guides" / "troubleshooting.md").read_text()
SOURCES = [
    path
    for part in ("runtime", "streams", "providers", "balancers")
    for path in sorted((ROOT / part).rglob("*.py"))
]
PLACEHOLDER = re.compile(r"%[-.\d]*[a-z]")


def template(node: ast.AST) -> str:
    """Return a text with `…` for each variable part; empty if the node is no text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return PLACEHOLDER.sub("…", node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) or "…" for part in node.values)
    if isinstance(node, ast.BinOp):
        return template(node.left) + template(node.right)
    return ""


def warnings_of(path: Path) -> Iterator[str]:
    """Find the warnings and errors that a module logs, except texts that are made elsewhere."""
    assigned: dict[str, str] = {}
    text = path.read_text()
    nodes = ast.walk(ast.parse(text)) if any(call in text for call in LOGGED) else ()
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            assigned[node.targets[0].id] = template(node.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in LOGGED:
            told = node.args[0]
            text = assigned.get(told.id, "") if isinstance(told, ast.Name) else template(told)
            if re.search(r"\w{3}", text):
                yield text


LOGGED = ("log.warning", "log.error", "log.exception")


def test_every_warning_of_the_log_has_an_entry() -> None:
    texts = {text for path in SOURCES for text in warnings_of(path)}
    shown = {re.sub("…+", "…", text) for text in texts}
    assert len(shown) > 60
    codes = CODE.findall(TROUBLES)
    assert [text for text in sorted(shown) if not any(text in code for code in codes)] == []


def test_every_error_class_has_an_entry() -> None:
    named = set(re.findall(r"^### `(\w+)`$", TROUBLES, re.M))
    assert named == set(importlib.import_module("millstream.runtime.errors").__all__)


def test_the_messages_of_the_page_are_those_of_the_code() -> None:
    known = " | ".join(
        re.sub("…+", "…", template(node))
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp)
    )
    shown = re.findall(r"^\| `([^`]*)` \|", TROUBLES, re.M)
    assert len(shown) > 60
    assert [text for text in shown if text not in known] == []


TAGGED = re.compile(r"^```python title=\"\S+\"$", re.M)
WITHOUT_TAGS = {
    "door.md",  # has parts of programs
    "tls.md",  # needs several machines: tests/real/test_tls.py
    "postgres.md",  # needs a server: tests/real/test_postgres_cluster.py
    "spark.md",  # needs a JVM and more time: tests/real/test_spark_write.py
}
GUIDES = DOCS / "guides"


@pytest.mark.parametrize("page", sorted(GUIDES.glob("*.md")), ids=lambda page: page.name)
def test_every_program_of_a_guide_is_run(page: Path) -> None:
    if page.name not in WITHOUT_TAGS:
        text = page.read_text()
        assert len(TAGGED.findall(text)) == text.count("```python"), page.name
