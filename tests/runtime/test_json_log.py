"""Records of the log as JSON: always one valid object on a line, with the grain that wrote it."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from millstream.runtime import Grain, grain, with_options
from millstream.runtime.run import JsonFormatter
from millstream.runtime.testing import SimCluster, Simulation, run

log = logging.getLogger("shop.desk")


class Wild:
    """A value that can be shown in no way."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class Kept(logging.Handler):
    """Keeps the lines of a logger."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    @property
    def found(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler = Kept()
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


def test_a_record_has_its_time_level_logger_text_and_extra(kept: Kept) -> None:
    log.warning("sold %d of %s", 3, "tea", extra={"order": 7, "shop": "Boston"})
    (found,) = kept.found
    time = found.pop("time")
    assert time.endswith("+00:00") and len(time) == len("2026-01-01T00:00:00.000+00:00")
    assert found == {
        "level": "WARNING",
        "logger": "shop.desk",
        "message": "sold 3 of tea",
        "order": 7,
        "shop": "Boston",
    }


def test_an_error_has_its_type_and_traceback(kept: Kept) -> None:
    try:
        raise ValueError("bad\nline")
    except ValueError:
        log.exception("failed")
    (found,) = kept.found
    assert found["error"] == "ValueError"
    assert found["traceback"].startswith("Traceback") and "bad" in found["traceback"]
    assert "\n" not in kept.lines[0]


def test_extra_does_not_replace_the_fields_of_the_record(kept: Kept) -> None:
    log.warning("x", extra={"time": "never", "level": "none", "logger": "other"})
    (found,) = kept.found
    assert (found["level"], found["logger"]) == ("WARNING", "shop.desk")
    assert found["time"] != "never"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (1.5, 1.5),
        (None, None),
        (True, True),
        ({"a": {1}}, {"a": [1]}),
        ({2: b"x"}, {"2": "b'x'"}),
        (("a", 1), ["a", 1]),
        (Wild(), "<Wild>"),
        (list(range(1_000)), list(range(100))),
        ("\ud800 \u2028 \n", "\ud800 \u2028 \n"),
    ],
)
def test_any_value_of_extra_becomes_json(kept: Kept, value: Any, shown: Any) -> None:
    log.warning("x", extra={"value": value})
    assert kept.found[0]["value"] == shown
    assert kept.lines[0].isascii() and "\n" not in kept.lines[0]


def test_a_value_that_has_itself_ends(kept: Kept) -> None:
    endless: list[Any] = []
    endless.append(endless)
    log.warning("x", extra={"value": endless})
    assert str(kept.found[0]["value"]).startswith("[[")


def test_arguments_that_do_not_fit_the_text_follow_it() -> None:
    def message(text: str, *args: object) -> str:
        record = logging.makeLogRecord({"msg": text, "args": args})
        return str(json.loads(JsonFormatter().format(record))["message"])

    assert message("sold %d", "tea") == "sold %d ('tea',)"
    assert message("%s", Wild()) == "%s <tuple>"


@settings(max_examples=examples(25))
@given(
    st.dictionaries(
        st.text().map(lambda name: f"x{name}"),
        st.recursive(
            st.none() | st.floats() | st.text() | st.binary() | st.integers(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
            max_leaves=8,
        ),
    ),
    st.text(),
)
def test_a_line_is_always_one_object(extra: dict[str, Any], text: str) -> None:
    record = logging.makeLogRecord({"msg": text, "name": "a", **extra})
    line = JsonFormatter().format(record)
    assert isinstance(json.loads(line, parse_constant=refuse), dict)
    assert "\n" not in line and line.isascii()


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


@grain(name="Desk")
class Desk(Grain):
    async def sell(self, what: str) -> None:
        log.info("sold %s", what)
        await asyncio.sleep(0.1)
        log.info("paid", extra={"method": "by card"})

    async def sell_in_thread(self) -> None:
        thread = threading.Thread(target=log.info, args=("in a thread",))
        thread.start()
        thread.join()


def test_a_line_of_a_turn_names_its_silo_grain_key_method_and_trace(kept: Kept) -> None:
    log.setLevel(logging.INFO)
    trace = "0af7651916cd43dd8448eb211c80319c"

    async def driver(sim: Simulation) -> None:
        async with SimCluster(sim, silos=1, grains=[Desk]) as cluster:
            silo = cluster.silo(cluster.names[0])
            assert silo is not None

            async def main() -> None:
                headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
                desk = with_options(silo.grain(Desk, "a"), flowing_headers=headers)
                await desk.sell("tea")
                await silo.grain(Desk, "b").sell_in_thread()
                log.info("outside")

            await sim.call(sim.host(cluster.names[0]), main())
            sold, paid, threaded, outside = kept.found
            own = {"silo": silo.address, "grain": "Desk", "key": "a", "trace": trace}
            assert own.items() <= sold.items()
            assert (sold["method"], sold["message"]) == ("sell", "sold tea")
            assert own.items() <= paid.items()
            assert paid["method"] == "by card"  # `extra` has precedence
            assert threaded["message"] == "in a thread"
            assert outside.keys() == {"time", "level", "logger", "message"}

    try:
        run(driver, seed=1)
    finally:
        log.setLevel(logging.NOTSET)
