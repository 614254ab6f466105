"""Hosts of their own for tests: network namespaces on one virtual switch.

`Hosts` needs root, the program `ip`, and `iptables` to drop packets. A host is a namespace with an
address of its own. `Host.run` runs a function in a thread inside the namespace: sockets that it
opens, and processes that it starts, are those of the host.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

import pytest

__all__ = ["Host", "Hosts", "require_hosts"]

T = TypeVar("T")
CLONE_NEWNET = 0x40000000
NETWORK = "10.77.0"
enter = getattr(os, "setns", None)  # since Python 3.12
numbers = count()


def require_hosts() -> None:
    """Skip the test if this process cannot make network namespaces."""
    if enter is None:
        pytest.skip("network namespaces need Python 3.12")
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    is_required = "hosts" in os.environ.get("MILLSTREAM_REQUIRES", "")
    for program in ("ip", "iptables"):
        if shutil.which(program) is None:
            (pytest.fail if is_required else pytest.skip)(f"{program} is not installed")
    try:
        Hosts(1).close()
    except subprocess.CalledProcessError as error:
        text = f"this machine makes no network namespaces: {error.stderr.strip()}"
        (pytest.fail if is_required else pytest.skip)(text)


def command(*words: str) -> None:
    """Run a program. Raises CalledProcessError with its output."""
    subprocess.run(words, check=True, capture_output=True, text=True)


class Host:
    """A namespace with one address.

    Attributes:
        address: its address, without a port.
    """

    def __init__(self, switch: str, prefix: str, number: int) -> None:
        self.address = f"{NETWORK}.{number}"
        self._switch, self._port = switch, f"port{number}"
        self._name = f"{prefix}h{number}"
        command("ip", "netns", "add", self._name)
        of_switch = ("ip", "-n", switch, "link")
        command(*of_switch, "add", self._port, "type", "veth", "peer", "eth0", "netns", self._name)
        command(*of_switch, "set", self._port, "master", "br0", "up")
        own = ("ip", "-n", self._name)
        command(*own, "address", "add", f"{self.address}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            command(*own, "link", "set", link, "up")

    def run(self, work: Callable[[], T]) -> T:
        """Run a function inside the host, and return its result."""
        found: list[Any] = []
        assert enter is not None, "require_hosts() skips the test"

        def inside() -> None:
            try:
                with open(f"/run/netns/{self._name}") as namespace:
                    enter(namespace.fileno(), CLONE_NEWNET)  # this thread alone
                found.extend((True, work()))
            except BaseException as error:
                found.extend((False, error))

        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
        is_done, result = found
        if not is_done:
            raise result
        return result  # type: ignore[no-any-return]

    def cut(self) -> None:
        """Unplug the host from the switch."""
        command("ip", "-n", self._switch, "link", "set", self._port, "down")

    def heal(self) -> None:
        """Plug the host in again, and drop no more packets."""
        command("ip", "-n", self._switch, "link", "set", self._port, "up")
        command("ip", "netns", "exec", self._name, "iptables", "-F")

    def drop(self, share: float) -> None:
        """Drop a share of the packets that arrive at the host, at random."""
        rule = ("INPUT", "-m", "statistic", "--mode", "random", "--probability", str(share))
        command("ip", "netns", "exec", self._name, "iptables", "-A", *rule, "-j", "DROP")

    def close(self) -> None:
        """Remove the host. Processes in it keep the namespace until they end."""
        command("ip", "netns", "del", self._name)


class Hosts:
    """Hosts that reach each other, and nothing else.

    Args:
        size: the number of hosts.
    """

    def __init__(self, size: int) -> None:
        prefix = f"ms{os.getpid()}x{next(numbers)}"
        self._switch = f"{prefix}s"
        self._hosts: list[Host] = []
        command("ip", "netns", "add", self._switch)
        try:
            command("ip", "-n", self._switch, "link", "add", "br0", "type", "bridge")
            command("ip", "-n", self._switch, "link", "set", "br0", "up")
            for number in range(1, size + 1):
                self._hosts.append(Host(self._switch, prefix, number))
        except BaseException:
            self.close()
            raise

    def __getitem__(self, at: int) -> Host:
        return self._hosts[at]

    def close(self) -> None:
        """Remove all hosts."""
        for host in self._hosts:
            host.close()
        command("ip", "netns", "del", self._switch)
