"""A program that is one silo, with options from flags and the environment.

This module owns `run_program`, and the names of each option as a flag, as a variable and as an
argument of factories. The command `millstream` parses the command line, and `serve` runs the silo.
A flag takes precedence over its variable. The factory gets only the options that were given. An
error is one line, before a port is opened or a row is written.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from millstream.runtime.definition.labels import read_labels
from millstream.runtime.errors import ConfigError, MillstreamError
from millstream.runtime.plugins import find_plugin
from millstream.runtime.silo.metrics import Metrics
from millstream.runtime.silo.silo import Silo
from millstream.runtime.wire.address import Address
from millstream.runtime.wire.tls import Tls

from .json_log import JsonFormatter
from .process import LOG_FORMAT, fill_standard_streams, settle_memory
from .serve import FAILED, serve
from .shutdown import run_to_end
from .target import load_target, make_silo

__all__ = ["RUN_OPTIONS", "RunOption", "prepare", "read_arguments", "run_program"]

BAD_ARGUMENTS = 2
LOG_FORMATS = ("text", "json")
BOOKIE, METRICS, LOG = "bookie", "metrics", "log_format"  # options of the program itself


class RunOption(NamedTuple):
    """An option of `millstream run`: a flag, a variable, and an argument of the factory.

    The options `bookie`, `metrics` and `log-format` are exceptions: the program uses them itself.

    Attributes:
        flag: The name of the flag, `--flag`. The variable is `MILLSTREAM_FLAG`, with `_` for `-`.
        argument: The argument of the factory.
        read: Makes the argument from the text. Raises ConfigError for a text that is not valid.
        help: One line for the help of the command.
        is_switch: Whether the flag has no value. It stands for `yes`.
    """

    flag: str
    argument: str
    read: Callable[[str], Any]
    help: str
    is_switch: bool = False

    @property
    def variable(self) -> str:
        """The environment variable of the option."""
        return f"MILLSTREAM_{self.flag.upper().replace('-', '_')}"


def read_address(text: str) -> str:
    """Return `host:port` unchanged. Raises ConfigError for any other text."""
    try:
        Address.parse(text)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return text


def read_membership(text: str) -> str:
    """Return `name:argument` unchanged. Raises ConfigError if there is no such plug-in."""
    find_plugin("millstream.membership", text)
    return text


def read_stores(text: str) -> dict[str, str]:
    """Read `name:argument`, or several `store=name:argument` with commas.

    Raises ConfigError if there is no such plug-in, or if a store is given twice.
    """
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


def read_log_format(text: str) -> str:
    """Return `text` or `json` unchanged. Raises ConfigError for any other text."""
    if text not in LOG_FORMATS:
        raise ConfigError(f"{text!r} is not valid: write {' or '.join(LOG_FORMATS)}")
    return text


def read_switch(text: str) -> bool:
    """Read `yes` or `no`. Raises ConfigError for any other text."""
    if text not in ("yes", "no"):
        raise ConfigError(f"{text!r} is not valid: write yes or no")
    return text == "yes"


RUN_OPTIONS = (
    RunOption("name", "name", str, "the name of the silo, for people and balancers"),
    RunOption(
        "listen", "address", read_address, "host:port to listen on; port 0 chooses a free port"
    ),
    RunOption("advertise", "advertise", read_address, "host:port that other processes connect to"),
    RunOption("insecure", "insecure", read_switch, "allow other addresses than loopback", True),
    RunOption(
        "tls", "tls", Tls.in_directory, "the directory with tls.crt, tls.key and ca.crt for TLS"
    ),
    RunOption("cluster", "cluster", str, "the name of the cluster"),
    RunOption("membership", "membership", read_membership, "membership table, as sqlite:DIRECTORY"),
    RunOption(
        "store",
        "stores",
        read_stores,
        "state store, as sqlite:DIRECTORY, or several as NAME=sqlite:DIRECTORY,...",
    ),
    RunOption("labels", "labels", read_labels, "labels of the silo, as NAME=VALUE,..."),
    RunOption("bookie", BOOKIE, read_switch, "run only the silo's bookie", True),
    RunOption(
        "metrics", METRICS, read_address, "host:port to serve /metrics, /healthz and /readyz on"
    ),
    RunOption("log-format", LOG, read_log_format, "text or json"),
)
"""The options of `millstream run`."""


def read_arguments(
    flags: Mapping[str, str | None], environment: Mapping[str, str]
) -> dict[str, Any]:
    """Return the factory's arguments: those of flags, else of variables that are not empty.

    ConfigError names the flag or the variable.
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
    """Run a silo until it is asked to stop.

    Args:
        target: `package.module:function` that returns a Silo.
        flags: Texts by the name of an option (`RUN_OPTIONS`). None: use the environment.

    Returns:
        The exit code. 2 means that an option or the factory is wrong. The others are those of
            `serve`.
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
    """Return the silo, not started. Raises ConfigError, and errors of the program's own code."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as for `python program.py`
    options = read_arguments(flags, os.environ)
    is_bookie, metrics_at = options.pop(BOOKIE, False), options.pop(METRICS, "")
    factory = load_target(target)
    set_up_logging(options.pop(LOG, ""))
    silo = make_silo(target, factory, options)
    if is_bookie:
        reduce_to_bookie(target, silo)
    if metrics_at:
        add_metrics(target, silo, metrics_at)
    return silo


def set_up_logging(log_format: str) -> None:
    """Log to standard error, unless the program has set up logging itself.

    The format `json` also applies to the handlers that the program has given to the root logger.
    """
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    if log_format == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter())


def reduce_to_bookie(target: str, silo: Silo) -> None:
    """Reduce the silo to its bookie. Raises ConfigError if that is impossible."""
    try:
        silo.reduce_to_bookie()
    except ConfigError as error:
        raise ConfigError(f"--bookie: {target!r}: {error}") from None


def add_metrics(target: str, silo: Silo, address: str) -> None:
    """Serve the metrics and the health of the silo. Raises ConfigError if that is impossible."""
    try:
        silo.add_metrics(Metrics(address))
    except ConfigError as error:
        raise ConfigError(f"--metrics: {target!r}: {error}") from None
