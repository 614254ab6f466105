"""`millstream why`: explains why a stream makes no progress.

This module owns the arguments and the output, and `millstream.streams` finds the cause. The content
of an error or a key cannot control the terminal.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from millstream.runtime import MillstreamError
from millstream.streams import (
    LaggingStream,
    StreamNamespace,
    StreamReport,
    SubscriptionReport,
    Why,
    lagging,
    why,
)

from .arguments import part_name, utf8
from .dead_letters import add_cluster, plain
from .gateway import connect_gateway

__all__ = ["add_why"]

SUBSCRIPTIONS_MAX = 20  # subscriptions that are printed
STREAMS_MAX = 20  # streams that are printed of a namespace


def add_why(command: argparse.ArgumentParser) -> None:
    """Add the options of `millstream why`."""
    add_cluster(command)
    command.add_argument("namespace", type=part_name, help="the namespace of the stream")
    text = "the key of the stream; without it: the streams with the largest lag"
    command.add_argument("key", type=utf8, nargs="?", help=text)
    command.set_defaults(run=run_why)


def run_why(arguments: argparse.Namespace) -> int:
    """Ask and print; returns the exit code."""
    try:
        lines = asyncio.run(ask(arguments))
    except (MillstreamError, ValueError) as error:
        text = f"{type(error).__name__}: {error}"
        print(f"millstream why: {plain(text)}", file=sys.stderr)
        return 1
    print("\n".join(map(plain, lines)))
    return 0


async def ask(arguments: argparse.Namespace) -> list[str]:
    """Connect and ask; returns the lines to print. Raises errors of the client."""
    async with connect_gateway(arguments) as client:
        name, provider = arguments.namespace, arguments.provider
        if arguments.key is None:
            return lagging_lines(name, await lagging(client, name, provider, limit=STREAMS_MAX))
        namespace = StreamNamespace[Any](name, object, provider=provider)
        return lines_of(await why(client, client.stream(namespace, arguments.key)))


def lagging_lines(namespace: str, streams: Sequence[LaggingStream]) -> list[str]:
    """Return the streams of a namespace with the largest lag, a line each."""
    if not streams:
        return [f"No stream of {namespace} has unprocessed events."]
    lines = []
    for one in streams:
        worst = one.subscription
        text = f"{one.stream} ({one.queue}, {one.silo})"
        if worst is not None:
            text += f": {worst.id}: {worst.state}, lag {worst.lag_events:,} events or "
            text += f"{worst.lag_s:.1f} s, no progress for {worst.still_s:.0f} s"
        lines.append(f"{text}: {one.reason}" if one.reason else text)
    return lines


def lines_of(found: Why) -> list[str]:
    """Return the sentence, and the facts of each hop."""
    report = found.reports[1]
    lines = [str(found), ""]
    lines += [f"{name:<14}{text}" for name, text in hops_of(report)]
    subscriptions = list(report.subscriptions or ())
    lines += [subscription_line(one) for one in subscriptions[:SUBSCRIPTIONS_MAX]]
    if len(subscriptions) > SUBSCRIPTIONS_MAX:
        lines.append(f"... and {len(subscriptions) - SUBSCRIPTIONS_MAX} more subscriptions")
    lines += [f"{'dead letter':<14}{one.id}: {one.error}" for one in report.letters]
    return lines


def hops_of(report: StreamReport) -> list[tuple[str, str]]:
    """Return queue, agent and cache, a line each."""
    owner = f"{report.owner_state}, {report.owner}" if report.owner else report.owner_state
    agent = report.agent
    if report.trouble:
        return [("queue", "none")]
    if agent is None:
        return [("queue", f"{report.queue} ({owner})")]
    return [
        ("queue", f"{report.queue} ({owner}, epoch {agent.epoch}), {agent.backlog:,} not read"),
        ("agent", f"{agent.state}, {agent.read:,} read, {agent.delivered:,} delivered"),
        (
            "cache",
            f"{agent.cached_events:,} of {agent.events_max:,} events, {agent.cached_bytes:,} of "
            f"{agent.bytes_max:,} bytes, oldest {agent.lag_s:.1f} s",
        ),
        (
            "",
            f"{agent.purged:,} events purged, {agent.evicted:,} evicted before lagging "
            f"subscriptions read them, {agent.full_count:,} times full, for "
            f"{agent.full_s:.1f} s in total",
        ),
    ]


def subscription_line(one: SubscriptionReport) -> str:
    """Return one subscription in a line."""
    each = f", {one.event_s * 1e3:.3g} ms per event" if one.event_s else ""
    retries = f", {one.retries:,} retries" if one.retries else ""
    gaps = f", {one.gaps_text}" if one.gaps else ""
    still = f", no progress for {one.still_s:.0f} s" if one.still_s >= 1 else ""
    reason = f": {one.reason}" if one.reason else ""
    return (
        f"{'subscription':<14}{one.id}: {one.state}, lag {one.lag_events:,} events or "
        f"{one.lag_s:.1f} s{each}{retries}{gaps}{still}{reason}"
    )
