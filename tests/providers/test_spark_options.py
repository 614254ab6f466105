"""Options of `format("millstream")`: accepted values, and the texts of errors."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, fields

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")

from pyspark_millstream.options import WriteOptions, parse
from pyspark_millstream.read_options import ReadOptions, parse_read

COLUMNS = ["id", "carrier", "delay"]
LEAST = {"gateways": "127.0.0.1:7700", "namespace": "arrivals", "key_column": "id"}


def parsed(**more: str) -> WriteOptions:
    return parse({**LEAST, **more}, COLUMNS)


def test_options_have_the_documented_defaults() -> None:
    assert asdict(parsed()) == {
        "gateways": ("127.0.0.1:7700",),
        "namespace": "arrivals",
        "key_column": "id",
        "value_columns": ("id", "carrier", "delay"),
        "cluster": "dev",
        "provider": "default",
        "writer_id": "",
        "chunk_rows": 10_000,
        "message_bytes": 262_144,
        "window": 8,
        "delivery": "staged",
        "patience_s": 60.0,
    }


def test_options_are_read_whatever_their_case() -> None:
    options = parse({**LEAST, "CHUNK_ROWS": "7", "Writer_Id": "w"}, COLUMNS)
    assert (options.chunk_rows, options.writer_id) == (7, "w")


def test_gateways_are_a_list_with_names_and_ipv6() -> None:
    options = parsed(gateways=" silo-1:7700, [::1]:7701 ,")
    assert options.gateways == ("silo-1:7700", "[::1]:7701")


@pytest.mark.parametrize("text", ["silo", "silo:", ":7700", "silo:70000", "silo:٣", ","])
def test_gateways_that_are_no_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="gateways"):
        parsed(gateways=text)


@pytest.mark.parametrize("name", ["gateways", "namespace", "key_column"])
def test_a_missing_option_is_named_with_what_to_write(name: str) -> None:
    with pytest.raises(ValueError, match=rf"'{name}' is missing: write option\('{name}', "):
        parse({key: text for key, text in LEAST.items() if key != name}, COLUMNS)


def test_value_columns_keep_the_order_that_was_asked_for() -> None:
    assert parsed(value_columns="delay, id").value_columns == ("delay", "id")


@pytest.mark.parametrize("name", ["key_column", "value_columns"])
def test_a_column_that_is_not_there_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}.*'plane'.*id, carrier, delay"):
        parsed(**{name: "plane"})


def test_a_column_name_that_two_columns_have_is_refused() -> None:
    with pytest.raises(ValueError, match="2 columns are named 'delay'"):
        parse(LEAST, [*COLUMNS, "delay"])


@pytest.mark.parametrize("name", ["chunk_rows", "message_bytes", "window"])
@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", "1000000000"])
def test_a_count_out_of_range_is_refused_with_the_range(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=rf"'{name}' is '{text}': write a whole number from 1 to"):
        parsed(**{name: text})


OWN = [field.name for field in fields(WriteOptions)]
READ = [field.name for field in fields(ReadOptions)]


@pytest.mark.parametrize("text", ["", "  ", "a\nb", "\ud800", "x\x00"])
@pytest.mark.parametrize("name", OWN)
def test_a_text_that_says_nothing_is_refused_with_the_name_of_the_option(
    name: str, text: str
) -> None:
    if name == "writer_id" and not text.strip():
        assert parsed(writer_id=text).writer_id == ""
        return
    with pytest.raises(ValueError, match=f"option '{name}' is "):
        parsed(**{name: text})


@pytest.mark.parametrize("text", ["", "  ", "a\nb", "\ud800", "x\x00"])
@pytest.mark.parametrize("name", READ)
def test_so_is_one_of_a_read(name: str, text: str) -> None:
    given = {"gateways": "a:1", "namespace": "n", name: text}
    if name == "consumer" and not text.strip():
        assert parse_read(given, is_stream=True).consumer == ""
        return
    with pytest.raises(ValueError, match=f"option '{name}' is "):
        parse_read(given, is_stream=True)


@pytest.mark.parametrize("text", ["-1", "0", "1.5", "1e3", "٣", "+5", "many", "9" * 30])
@pytest.mark.parametrize("name", ["max_messages_per_batch", "split_messages"])
def test_a_count_of_a_read_out_of_range_is_refused_with_the_range(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=rf"'{name}' is .*: write a whole number from 1 to"):
        parse_read({"gateways": "a:1", "namespace": "n", name: text}, is_stream=True)


def test_a_list_of_no_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="option 'value_columns' is ', ,'"):
        parsed(value_columns=", ,")


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon", "3601", "٣"])
def test_a_timeout_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="'patience_s' is"):
        parsed(patience_s=text)


def test_deliveries_are_two_and_another_one_is_refused_with_them() -> None:
    assert parsed(delivery="direct").delivery == "direct"
    right = r"option\('delivery', 'staged'\) or option\('delivery', 'direct'\)"
    with pytest.raises(ValueError, match=f"'delivery' is 'stagd': write {right}"):
        parsed(delivery="stagd")


def test_an_option_that_is_none_is_refused_and_sparks_own_are_not() -> None:
    assert parsed(checkpointLocation="/x", queryName="q") == parsed()
    with pytest.raises(ValueError, match=r"'chunkrows': write option\('chunk_rows'"):
        parsed(chunkRows="5")
    with pytest.raises(ValueError, match=r"'timeout_s': the options are gateways, .*, patience_s$"):
        parsed(timeout_s="5")


def test_spark_finds_the_source_without_pandas_and_pyarrow() -> None:
    # Spark imports the module in every session, also in those that do not use it.
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]; import pyspark.sql.datasource; "
        "before = set(sys.modules); import pyspark_millstream as module; "
        "print(module.DefaultSource.name(), *sorted(set(sys.modules) - before))"
    )
    command = [sys.executable, "-c", program, *sys.path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["millstream", "pyspark_millstream"]


def test_the_drivers_side_of_a_write_needs_no_client() -> None:
    # For each micro-batch, Spark starts a process that makes the writer and one that commits.
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]; import pyspark_millstream.writer; "
        "print('millstream.streams' in sys.modules, 'pyarrow' in sys.modules)"
    )
    command = [sys.executable, "-c", program, *sys.path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
