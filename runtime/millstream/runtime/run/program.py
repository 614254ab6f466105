"""A program that is one silo, with its options from flags and the environment.

Owns: `run_program`, and which option is called what in flags, environment and factories. Not:
parsing a command line (the `millstream` command), the life of the silo (`serve`). Invariants: a
flag wins over its variable, and only what was given reaches the factory; what is wrong is told in a
line, before a port is opened or a row is written.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from millstream.runtime.errors import ConfigError, MillstreamError
from millstream.runtime.plugins import find_plugin
from millstream.runtime.silo.silo import Silo
from millstream.runtime.wire.address import Address

from .process import LOG_FORMAT, fill_standard_streams, settle_memory
from .serve import FAILED, serve
from .shutdown import run_to_end
from .target import load_target, make_silo

__all__ = ["RUN_OPTIONS", "RunOption", "prepare", "read_arguments", "run_program"]

BAD_ARGUMENTS = 2
BOOKIE = "bookie"  # of the program: the factory does not get it


class RunOption(NamedTuple):
    """An option: `--flag`, `MILLSTREAM_FLAG`, and the argument of the factory that gets it.

    A switch is given without a value, which stands for `yes`. `bookie` is the program's own: what
    the factory returns is reduced by it.
    """

    flag: str
    argument: str
    read: Callable[[str], Any]
    help: str
    is_switch: bool = False

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return f"MILLSTREAM_{self.flag.upper()}"


def read_address(text: str) -> str:
    """`host:port`, unchanged. Raises ConfigError."""
    try:
        Address.parse(text)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return text


def read_membership(text: str) -> str:
    """`name:argument` of a plug-in, unchanged. Raises ConfigError."""
    find_plugin("millstream.membership", text)
    return text


def read_stores(text: str) -> dict[str, str]:
    """`name:argument`, or several `store=name:argument`, with commas. Raises ConfigError."""
    stores: dict[str, str] = {}
    for part in text.split(","):
        name, equals, store = part.partition("=")
        if not equals:
            name, store = "default", part
        if name in stores:
            raise ConfigError(f"store {name!r} is given twice")
        find_plugin("millstream.stores", store)
        stores[name] = store
    return stores


def read_switch(text: str) -> bool:
    """`yes` or `no`. Raises ConfigError."""
    if text not in ("yes", "no"):
        raise ConfigError(f"{text!r} is neither yes nor no")
    return text == "yes"


RUN_OPTIONS = (
    RunOption("name", "name", str, "for people and balancers"),
    RunOption("listen", "address", read_address, "host:port; port 0 takes a free one"),
    RunOption("advertise", "advertise", read_address, "host:port that others connect to"),
    RunOption("insecure", "insecure", read_switch, "listen elsewhere than on loopback", True),
    RunOption("cluster", "cluster", str, "the cluster's name"),
    RunOption("membership", "membership", read_membership, "the table, as sqlite:DIRECTORY"),
    RunOption(
        "store", "stores", read_stores, "state, as sqlite:DIRECTORY or NAME=sqlite:DIRECTORY,..."
    ),
    RunOption("bookie", BOOKIE, read_switch, "run nothing but the silo's bookie", True),
)


def read_arguments(
    flags: Mapping[str, str | None], environment: Mapping[str, str]
) -> dict[str, Any]:
    """The factory's arguments: what flags say, else variables that are not empty.

    Raises ConfigError naming the flag or the variable.
    """
    found = {}
    for option in RUN_OPTIONS:
        flag = flags.get(option.flag)
        text = environment.get(option.variable) if flag is None else flag
        if not text:
            continue
        try:
            found[option.argument] = option.read(text)
        except ConfigError as error:
            where = option.variable if flag is None else f"--{option.flag}"
            raise ConfigError(f"{where}: {error}") from None
    return found


def run_program(target: str, flags: Mapping[str, str | None]) -> int:
    """Run a silo until it is told to stop; returns the exit code.

    Args:
        target: `package.module:function` that returns a Silo.
        flags: text by the name of an option (`RUN_OPTIONS`); None: see the environment.
    """
    fill_standard_streams()
    try:
        silo = prepare(target, flags)
        return run_to_end(serve(silo, on_active=lambda _: settle_memory()))
    except ConfigError as error:
        print(f"millstream run: {error}", file=sys.stderr)
        return BAD_ARGUMENTS
    except MillstreamError as error:
        print(f"millstream run: {type(error).__name__}: {error}", file=sys.stderr)
        return FAILED
    except Exception:
        traceback.print_exc()
        return FAILED


def prepare(target: str, flags: Mapping[str, str | None]) -> Silo:
    """The silo, not started. Raises ConfigError, and what the program's own code raises."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python program.py` has it
    options = read_arguments(flags, os.environ)
    is_bookie = options.pop(BOOKIE, False)
    factory = load_target(target)
    # Does nothing where the program has set up its own.
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    silo = make_silo(target, factory, options)
    if is_bookie:
        reduce_to_bookie(target, silo)
    return silo


def reduce_to_bookie(target: str, silo: Silo) -> None:
    """Leave nothing but its bookie. Raises ConfigError."""
    try:
        silo.reduce_to_bookie()
    except ConfigError as error:
        raise ConfigError(f"--bookie: {target!r}: {error}") from None
