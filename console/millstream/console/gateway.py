"""How commands connect to a running cluster: its gateways, its name, and the operator's secret.

Owns: these options, and the client that is made of them. Invariant: what is wrong with an option is
told with the name of the option, before anything is connected.
"""

from __future__ import annotations

import argparse
import os

from millstream.runtime import Client, ConfigError, RuntimeOptions, connect, operator_secret

from .arguments import address, utf8

__all__ = ["CLUSTER", "add_gateway", "connect_gateway", "secret_of"]

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


def connect_gateway(arguments: argparse.Namespace, options: RuntimeOptions | None = None) -> Client:
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
