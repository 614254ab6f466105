"""The connection of commands to a running cluster: gateways, name, secret and files for TLS.

This module owns these options and the client. A wrong option is reported with its name before any
connection is opened.
"""

from __future__ import annotations

import argparse
import os

from millstream.runtime import Client, ConfigError, RuntimeOptions, Tls, connect, operator_secret

from .arguments import address, utf8

__all__ = ["CLUSTER", "add_gateway", "connect_gateway", "secret_of"]

GATEWAY = "127.0.0.1:7700"
CLUSTER = "dev"
OPERATOR = "MILLSTREAM_OPERATOR_SECRET"
TLS = "MILLSTREAM_TLS"


def add_gateway(action: argparse.ArgumentParser, *, has_cluster: bool = True) -> None:
    """Add the options. `has_cluster` is False for a command that has its own `--cluster`."""
    action.add_argument(
        "--gateway",
        action="append",
        metavar="HOST:PORT",
        type=address,
        help=f"the gateway of a silo ({GATEWAY}); may be repeated",
    )
    if has_cluster:
        action.add_argument(
            "--cluster", default=CLUSTER, type=utf8, help=f"the name of the cluster ({CLUSTER})"
        )
    action.add_argument(
        "--operator",
        metavar="DIRECTORY",
        help="the membership directory of the silos: its file millstream.operator has the "
        f"operator's secret; default: the secret in {OPERATOR}",
    )
    action.add_argument(
        "--tls",
        metavar="DIRECTORY",
        help="the directory with tls.crt, tls.key and ca.crt of a client, if the silos use TLS; "
        f"default: the directory in {TLS}",
    )


def connect_gateway(arguments: argparse.Namespace, options: RuntimeOptions | None = None) -> Client:
    """Return a client, which the caller enters with `async with`.

    Raises ConfigError if an argument is not valid.
    """
    directory = arguments.tls or os.environ.get(TLS, "")
    return connect(
        *(arguments.gateway or [GATEWAY]),
        cluster=arguments.cluster or CLUSTER,
        options=options,
        operator_secret=secret_of(arguments.operator),
        tls=Tls.in_directory(directory) if directory else None,
    )


def secret_of(directory: str | None) -> str:
    """Return the operator's secret; "" without one, and the command connects as any client does."""
    if directory is None:
        return os.environ.get(OPERATOR, "")
    try:
        return operator_secret(directory)
    except (ConfigError, OSError) as error:
        raise ConfigError(f"--operator: {error}") from None
