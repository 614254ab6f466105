"""A Redis server for one test, on a free loopback port and with its files in a directory."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

__all__ = ["RedisServer", "free_port", "require_redis"]

START_S = 20.0
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


def require_redis() -> None:
    """Skip the test if redis-server is not installed, or fail if `MILLSTREAM_REQUIRES` names it."""
    if shutil.which("redis-server") is None:
        is_required = "redis" in os.environ.get("MILLSTREAM_REQUIRES", "")
        (pytest.fail if is_required else pytest.skip)("redis-server is not installed")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class RedisServer:
    """Runs from its construction. A test can `kill`, `start`, `pause` and `go_on` the server."""

    def __init__(self, directory: Path, *options: str) -> None:
        self._directory = directory
        self._options = options or DURABLE
        self._process: subprocess.Popen[bytes] | None = None
        for is_last in (False, False, True):
            self.port = free_port()
            try:
                self.start()
                break
            except AssertionError:  # another program took the port in the meantime
                if is_last:
                    raise
        self.address = f"redis://127.0.0.1:{self.port}/0"

    def start(self, *options: str, waits: bool = True) -> None:
        given: tuple[str, ...] = (
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(self._directory),
        )
        options = options or self._options
        if "--cluster-enabled" in options:
            # the default, 10,000 above the port, may exceed the last port
            given += ("--cluster-port", str(free_port()))
        self._process = subprocess.Popen(
            ["redis-server", *given, "--save", "", *options], stdout=subprocess.DEVNULL
        )
        if waits:
            self.wait()

    def wait(self) -> None:
        """Wait until the server answers and has loaded its data."""
        end_s = time.monotonic() + START_S
        assert self._process is not None
        while time.monotonic() < end_s and self._process.poll() is None:
            try:
                answer = self.command("INFO", "persistence")
                if b"\nloading:0" in answer or b"NOAUTH" in answer:
                    return
            except OSError:
                pass
            time.sleep(0.02)
        self.kill()
        raise AssertionError("redis-server did not start")

    def command(self, *words: str | bytes) -> bytes:
        """Send a command, and return the raw answer."""
        parts = [word.encode() if isinstance(word, str) else word for word in words]
        frame = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as peer:
            peer.sendall(b"*%d\r\n%s" % (len(parts), frame))
            peer.settimeout(5)
            answer = peer.recv(65_536)
            if answer.startswith(b"$"):
                head, _, rest = answer.partition(b"\r\n")
                while len(rest) < int(head[1:]):
                    rest += peer.recv(65_536)
                return rest
            return answer

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """End the process at once, as a crash does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def tear(self, count: int) -> None:
        """Cut `count` bytes off the end of the server's file. The server must not be running."""
        [path] = (self._directory / "appendonlydir").glob("*.incr.aof")
        os.truncate(path, path.stat().st_size - count)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
