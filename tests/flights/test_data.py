"""The reader of the file: rows, months, chunks."""

from __future__ import annotations

import asyncio
import csv
from pathlib import Path

import pytest
from examples.flights.data import Flight, read_flights, row_of, split_months
from examples.flights.publish_csv import ROUTES, Chunk, Producer, _read

LINE = {
    "carrier": "UA",
    "tailnum": "N1",
    "origin": "EWR",
    "dest": "IAH",
    "dep_time": "517.0",
    "arr_time": "830.0",
    "dep_delay": "2.0",
    "arr_delay": "-11.0",
}
ROWS = 30_000  # two months of the file


@pytest.fixture(scope="module")
def months(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return split_months(tmp_path_factory.mktemp("work") / "months", ROWS)


def test_the_first_rows_are_as_the_file_has_them() -> None:
    rows = list(read_flights(3))
    assert [row.flight.dest for row in rows] == ["IAH", "IAH", "MIA"]
    assert rows[0].flight == Flight("UA", "N14228", "EWR", "IAH", 2, 11)


def test_a_row_gives_a_departure_an_arrival_and_a_leg() -> None:
    row = row_of(LINE)
    assert row.flight == Flight("UA", "N1", "EWR", "IAH", 2, -11)
    assert [key_of(row) for _, key_of in ROUTES] == ["EWR", "IAH", "N1"]


def test_a_cancelled_flight_is_neither_departure_nor_arrival() -> None:
    row = row_of({**LINE, "dep_time": "NA", "arr_time": "", "dep_delay": "NA", "arr_delay": ""})
    assert (row.flight.dep_delay, row.flight.arr_delay) == (None, None)
    assert [key_of(row) for _, key_of in ROUTES] == [None, None, "N1"]


def test_a_flight_without_tail_number_is_no_leg() -> None:
    assert [key_of(row_of({**LINE, "tailnum": ""})) for _, key_of in ROUTES] == ["EWR", "IAH", None]


def test_months_have_every_row_once_in_file_order(months: list[Path]) -> None:
    rows = []
    for path in months:
        with path.open(encoding="utf-8", newline="") as file:
            rows += [row_of(line) for line in csv.DictReader(file)]
    assert rows == list(read_flights(ROWS))


def test_months_have_a_file_each_and_ages_in_order(months: list[Path]) -> None:
    assert [path.name for path in months] == ["00-month-1.csv", "01-month-10.csv"]
    ages = [path.stat().st_mtime for path in months]
    assert ages == sorted(set(ages))


async def test_chunks_have_the_events_of_each_key_in_file_order() -> None:
    producers = [Producer(None, None) for _ in ROUTES]  # type: ignore[arg-type]
    for producer in producers:
        producer.waiting = asyncio.Queue()
    await _read(producers, 2_000, 500)
    for producer, (namespace, key_of) in zip(producers, ROUTES, strict=True):
        sent: dict[str, list[Flight]] = {}
        sizes = []
        while (chunk := producer.waiting.get_nowait()) is not None:
            assert isinstance(chunk, Chunk)
            sizes.append(chunk.events)
            for key, items in chunk.by_key.items():
                sent.setdefault(key, []).extend(map(namespace.codec.decode, map(bytes, items)))
        wanted: dict[str, list[Flight]] = {}
        for row in read_flights(2_000):
            wanted_key = key_of(row)
            if wanted_key is not None:
                wanted.setdefault(wanted_key, []).append(row.flight)
        assert sent == wanted
        assert set(sizes[:-1]) == {500} and 0 < sizes[-1] <= 500
