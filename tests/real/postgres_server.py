"""A PostgreSQL server for one test, on a free loopback port and with its own files."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.real.redis_server import free_port

__all__ = ["PostgresServer", "require_postgres"]

START_S = 30.0
PLACES = "/usr/lib/postgresql/*/bin"
SETTINGS = {
    "unix_socket_directories": "",
    "shared_buffers": "32MB",
    "recovery_init_sync_method": "syncfs",
}


def programs() -> str | None:
    """Find the directory of the server's programs. Debian does not put them on `PATH`."""
    found = shutil.which("initdb")
    return os.path.dirname(found) if found else next(iter(sorted(glob.glob(PLACES))[::-1]), None)


def require_postgres() -> None:
    """Skip the test if PostgreSQL is not installed, or fail if `MILLSTREAM_REQUIRES` names it."""
    if programs() is None:
        is_required = "postgresql" in os.environ.get("MILLSTREAM_REQUIRES", "")
        (pytest.fail if is_required else pytest.skip)("PostgreSQL is not installed")


class PostgresServer:
    """Runs from its construction, and listens on one address. As root it starts the server as
    `postgres`, because PostgreSQL refuses root.
    """

    def __init__(self, address: str = "127.0.0.1", connections_max: int = 20) -> None:
        self._settings = {
            **SETTINGS,
            "listen_addresses": address,
            "max_connections": str(connections_max),
        }
        self._programs = programs()
        self._user = "postgres" if os.geteuid() == 0 else None
        # not among pytest's directories, because the user `postgres` cannot read them
        self._root = tempfile.mkdtemp(prefix="millstream-postgres-")
        self._directory = f"{self._root}/data"
        if self._user:
            os.chown(self._root, pwd.getpwnam(self._user).pw_uid, -1)
        made = ["initdb", "-D", self._directory, "-U", "postgres", "-A", "trust", "-N"]
        subprocess.run(self._command(*made), check=True, capture_output=True, **self._as_user())
        with Path(self._directory, "pg_hba.conf").open("a") as rules:
            rules.write("host all all samenet trust\n")  # of a test with a network of its own
        self.port = free_port()
        self.url = f"postgresql://postgres@{address}:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def _command(self, name: str, *arguments: str) -> list[str]:
        return [f"{self._programs}/{name}", *arguments]

    def _as_user(self) -> dict[str, Any]:
        return {"user": self._user, "cwd": "/"} if self._user else {}

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        given = self._settings.items()
        settings = [part for name, value in given for part in ("-c", f"{name}={value}")]
        command = self._command("postgres", "-D", self._directory, "-p", str(self.port))
        self._process = subprocess.Popen(
            [*command, *settings],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self._as_user(),
        )
        end_s = time.monotonic() + START_S
        while not self._answers():
            assert self._process.poll() is None, "the server ended"
            assert time.monotonic() < end_s, "the server does not answer"
            time.sleep(0.1)

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(f"{self.url}/postgres", connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def without(self, schema: str) -> str:
        """Drop the schema if it exists, and return the URL of the database."""
        import psycopg

        with psycopg.connect(f"{self.url}/postgres", autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())
        return f"{self.url}/postgres"

    @contextmanager
    def guarding(self, user: str) -> Iterator[None]:
        """Make the server ask this user for a password."""
        assert self._process is not None
        rules = Path(self._directory, "pg_hba.conf")
        before = rules.read_text()
        for text in (f"host all {user} all scram-sha-256\n{before}", before):
            rules.write_text(text)
            self._process.send_signal(signal.SIGHUP)
            time.sleep(0.2)
            if text is not before:
                yield

    def kill(self) -> None:
        """Send SIGQUIT: the server ends at once, as in a crash, and recovers at the next start."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
        self._process.wait(START_S)

    def _processes(self) -> list[int]:
        """Return the ids of the server's processes, the first one last."""
        assert self._process is not None
        first = self._process.pid
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        return [*map(int, children), first]

    def _signal_all(self, number: signal.Signals) -> None:
        for one in self._processes():
            with suppress(ProcessLookupError):
                os.kill(one, number)

    def crash(self) -> None:
        """Send SIGKILL to all processes of the server."""
        assert self._process is not None
        self._signal_all(signal.SIGSTOP)  # so that none is added meanwhile
        self._signal_all(signal.SIGKILL)
        self._process.wait(START_S)

    def pause(self) -> None:
        """Send SIGSTOP to all processes of the server: it is silent, and keeps its connections."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue after `pause`."""
        self._signal_all(signal.SIGCONT)

    def close(self) -> None:
        """Kill the server, and remove its files."""
        self.kill()
        shutil.rmtree(self._root)
