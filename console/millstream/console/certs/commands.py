"""The arguments and the output of `millstream certs`."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from millstream.console.arguments import positive, utf8
from millstream.runtime import ConfigError, Env, Role
from millstream.runtime.extending import show_text

__all__ = ["add_certs"]

DAYS = 365
FAILED = 1


def add_certs(command: argparse.ArgumentParser) -> None:
    """Add commands and options of `millstream certs`."""
    actions = command.add_subparsers(dest="action", required=True)
    init = actions.add_parser(
        "init", help="make an authority, a certificate of silos and one of clients"
    )
    init.add_argument("directory", type=Path, help="a directory that does not exist, or is empty")
    init.add_argument("--cluster", default="dev", type=utf8, help="the name of the cluster (dev)")
    init.set_defaults(work=run_init)
    one = actions.add_parser("issue", help="make a certificate of a silo or client, or renew it")
    one.add_argument("directory", type=Path, help="the directory of the authority")
    whose = one.add_mutually_exclusive_group(required=True)
    whose.add_argument("--silo", metavar="NAME", type=utf8, help="the name of a silo")
    whose.add_argument("--client", metavar="NAME", type=utf8, help="the name of a client")
    one.add_argument(
        "--into",
        metavar="DIRECTORY",
        type=Path,
        help="the directory to write; default: NAME in the directory of the authority",
    )
    one.set_defaults(work=run_issue)
    for action in (init, one):
        text = f"the days for which the certificate is valid ({DAYS})"
        action.add_argument("--days", default=DAYS, type=positive, help=text)
    show = actions.add_parser("show", help="show the name of a certificate and its last day")
    show.add_argument("path", type=Path, help="a certificate, or a directory with tls.crt")
    show.set_defaults(work=run_show)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run a command, and return its exit code."""
    try:
        arguments.work(arguments)
    except ImportError:
        text = "the package cryptography is not installed: pip install 'millstream[tls]'"
        print(f"millstream certs: {text}", file=sys.stderr)
        return FAILED
    except (ConfigError, OSError) as error:
        print(f"millstream certs {arguments.action}: {error}", file=sys.stderr)
        return FAILED
    return 0


def read_clock() -> datetime:
    """Return the time of this machine."""
    return datetime.fromtimestamp(Env().wall_s(), UTC)


def run_init(arguments: argparse.Namespace) -> None:
    """Make an authority, and one certificate of each role."""
    from .authority import init_authority, issue

    directory, now = arguments.directory, read_clock()
    init_authority(directory, arguments.cluster, now)
    for role in (Role.SILO, Role.CLIENT):
        name = role.name.lower()
        uri = issue(directory, role, name, directory / name, now, arguments.days)
        print(f"{directory / name}: {uri}")
    print(f"Keep {directory / 'ca.key'} secret: its owner can make certificates of silos.")


def run_issue(arguments: argparse.Namespace) -> None:
    """Make one certificate."""
    from .authority import issue

    role, name = (Role.SILO, arguments.silo) if arguments.silo else (Role.CLIENT, arguments.client)
    into = arguments.into or arguments.directory / name
    uri = issue(arguments.directory, role, name, into, read_clock(), arguments.days)
    print(f"{into}: {uri}")


def run_show(arguments: argparse.Namespace) -> None:
    """Print name, issuer and validity of a certificate."""
    from .authority import read_certificate

    path = arguments.path
    shown = read_certificate(path / "tls.crt" if path.is_dir() else path)
    left = shown.valid_until - read_clock()
    print(f"name    {show_text(', '.join(shown.names)) or 'none'}")
    print(f"issuer  {show_text(shown.issuer)}")
    print(f"valid   {shown.valid_from:%Y-%m-%d} to {shown.valid_until:%Y-%m-%d}")
    print(f"left    {left.days} days" if left > timedelta(0) else "left    none: it has expired")
