"""How commands connect to a running cluster: its gateways, its name, and the operator's secret.

Owns: these options, and the client that is made of them. Invariant: what is wrong with an option is
told with the name of the option, before anything is connected.
"""

from __future__ import annotations

import argparse
import os

from millstream.runtime import (
    Address,
    Client,
    ConfigError,
    RuntimeOptions,
    connect,
    operator_secret,
)
from millstream.runtime.extending import shown_value

__all__ = ["CLUSTER", "add_gateway", "connected", "secret_of", "utf8"]

GATEWAY = "127.0.0.1:7700"
CLUSTER = "dev"
OPERATOR = "MILLSTREAM_OPERATOR_SECRET"


def add_gateway(action: argparse.ArgumentParser, *, has_cluster: bool = True) -> None:
    """Add the options.

    Args:
        has_cluster: False for a command that has `--cluster` already.
    """
    action.add_argument(
        "--gateway",
        action="append",
        metavar="HOST:PORT",
        type=address,
        help=f"a silo ({GATEWAY}); may be repeated",
    )
    if has_cluster:
        action.add_argument(
            "--cluster", default=CLUSTER, type=utf8, help=f"the cluster's name ({CLUSTER})"
        )
    action.add_argument(
        "--operator",
        metavar="DIRECTORY",
        help="the membership directory of the silos, whose file millstream.operator holds the "
        f"operator's secret; default: the secret in {OPERATOR}",
    )


def address(given: str) -> str:
    """`host:port`."""
    try:
        Address.parse(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return given


def utf8(given: str) -> str:
    """What can be sent."""
    try:
        given.encode()
    except UnicodeEncodeError:
        what = f"{shown_value(given)} is no text that UTF-8 can say"
        raise argparse.ArgumentTypeError(what) from None
    return given


def connected(arguments: argparse.Namespace, options: RuntimeOptions | None = None) -> Client:
    """The client, to be entered. Raises ConfigError."""
    return connect(
        *(arguments.gateway or [GATEWAY]),
        cluster=arguments.cluster or CLUSTER,
        options=options,
        operator_secret=secret_of(arguments.operator),
    )


def secret_of(directory: str | None) -> str:
    """The operator's secret, or nothing: then the command connects as any client does."""
    if directory is None:
        return os.environ.get(OPERATOR, "")
    try:
        return operator_secret(directory)
    except (ConfigError, OSError) as error:
        raise ConfigError(f"--operator: {error}") from None
