"""Single messages: handed out, released, leased, and counted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from millstream.streams.contracts.capability import Capability
from millstream.streams.contracts.message import OutMessage, QueueMessage
from millstream.streams.contracts.suite.bench import (
    BYTES_MAX,
    EVENTS_MAX,
    QUIET_S,
    AdapterBench,
    texts,
)
from millstream.streams.contracts.suite.check import CheckList
from millstream.streams.contracts.suite.guarded import GuardedReceiver
from millstream.streams.contracts.suite.verdict import NotRun, expect
from millstream.streams.contracts.token import Token

__all__ = ["leases"]

leases = CheckList()
LEASED, ITEM_ACK, ORDERED = Capability.LEASED, Capability.ITEM_ACK, Capability.ORDERED
LEASE_MAX_S = 5.0  # give the factory a shorter lease for the suite
DELAY_S = 0.35
EARLIEST = 0.9  # the part of a time that must pass, in spite of clocks and rounding
LONG_LIST = 60  # more tokens than brokers take in one request
HELD_S = 60.0


@leases.check(ITEM_ACK, excludes=(ORDERED,))
async def what_is_released_is_read_again(bench: AdapterBench) -> None:
    """`release` returns exactly these messages, and the next read gets them."""
    await bench.publish("a", "b", "c")
    receiver = await bench.begin()
    found = await bench.collect(receiver, 3)
    mine = [message.token for message in found if texts([message]) != ["b"]]
    await keep_leased(bench, receiver, found)
    await receiver.release(mine, 0.0, False)
    bench.same(await bench.everything(receiver, 2), ["a", "c"])


async def keep_leased(
    bench: AdapterBench, receiver: GuardedReceiver, messages: Sequence[QueueMessage]
) -> None:
    """Extend messages, so that they are not delivered again while a check looks at others."""
    if bench.has(LEASED):
        tokens = [message.token for message in messages]
        lost = await receiver.extend(tokens, HELD_S)
        expect(not lost, "no lost lease among messages that were just read", lost)


@leases.check(ITEM_ACK, excludes=(ORDERED,))
async def a_released_message_waits_for_its_delay(bench: AdapterBench) -> None:
    """With `release(delay_s)`, a message is read only after the whole delay, even if that is longer
    than a lease; after the delay it is read."""
    await bench.publish("a", "b")
    receiver, loop = await bench.begin(), asyncio.get_running_loop()
    found = await bench.collect(receiver, 2)
    await keep_leased(bench, receiver, found)
    delays = {
        texts([one])[0]: (one.token, delay_s) for one, delay_s in release_delayed(bench, found)
    }
    begin_s = loop.time()
    for token, delay_s in delays.values():
        await receiver.release([token], delay_s, True)
    came = 0
    while came < len(found):
        again = await bench.collect(receiver, 1, bench.hooks.patience_s)
        for message in again:
            expect_late(loop.time() - begin_s, delays[texts([message])[0]][1])
        await receiver.ack(None, [message.token for message in again])
        came += len(again)


def release_delayed(
    bench: AdapterBench, found: Sequence[QueueMessage]
) -> Iterator[tuple[QueueMessage, float]]:
    """A short delay, of no whole number of seconds, and a long one."""
    return zip(found, (DELAY_S, bench.hooks.patience_s), strict=True)


def expect_late(took_s: float, asked_s: float) -> None:
    """Expect that a message arrived after the whole requested time."""
    is_so = took_s >= asked_s * EARLIEST
    wanted = f"the message after {asked_s:g} s at the earliest"
    expect(is_so, wanted, f"the message after {took_s:.3f} s")


@leases.check(ITEM_ACK, excludes=(ORDERED,))
async def releasing_what_is_done_changes_nothing(bench: AdapterBench) -> None:
    """`release` does not return an acknowledged message, or one that this receiver has not read."""
    await bench.publish("a", "b")
    receiver = await bench.begin()
    tokens = [message.token for message in await bench.collect(receiver, 2)]
    await receiver.ack(None, tokens)
    await receiver.ack(None, [])
    await receiver.release([], 0.0, True)
    await receiver.release([*tokens, Token(1 << 20, 1 << 40)], 0.0, True)
    found = await receiver.read(EVENTS_MAX, BYTES_MAX, QUIET_S)
    expect(not found, "no message", texts(found))


@leases.check(ITEM_ACK, excludes=(ORDERED,))
async def a_token_of_a_former_receiver_settles_nothing_else(bench: AdapterBench) -> None:
    """A token names one message: the next receiver of the epoch uses it for no other message."""
    await bench.publish("a", "b")
    first = await bench.begin()
    found = {text: m.token for m in await bench.collect(first, 2) for text in texts([m])}
    await first.ack(None, [found["a"]])
    await first.aclose()
    second = await bench.begin()
    await keep_leased(bench, second, await bench.collect(second, 1))
    await second.ack(None, [found["a"]])
    await second.release([found["a"]], 0.0, True)
    await second.aclose()
    bench.same(await bench.everything(await bench.begin(2), 1), ["b"])


@leases.check(ITEM_ACK, excludes=(ORDERED,))
async def only_what_has_run_counts_as_an_attempt(bench: AdapterBench) -> None:
    """If attempts are counted, `release(has_run=True)` counts as one; `has_run=False` and closing
    do not."""
    await bench.publish("a")
    receiver = await bench.begin()
    found = await one_held(bench, receiver)
    attempts, wanted = [found.attempt], [1, 1, 2, 2, 3]
    if found.attempt == 0:
        raise NotRun("the provider does not count attempts")
    for has_run in (False, True, None, True):
        receiver = await give_back(bench, receiver, found.token, has_run)
        found = await one_held(bench, receiver)
        attempts.append(found.attempt)
    expect(attempts == wanted, f"attempts {wanted}", attempts)


async def one_held(bench: AdapterBench, receiver: GuardedReceiver) -> QueueMessage:
    """Read the one message, and extend its lease."""
    (found,) = await bench.collect(receiver, 1)
    await keep_leased(bench, receiver, [found])
    return found


async def give_back(
    bench: AdapterBench, receiver: GuardedReceiver, token: Token, has_run: bool | None
) -> GuardedReceiver:
    """Release the message.

    With None, close the receiver. Return the receiver that continues to read.
    """
    if has_run is not None:
        await receiver.release([token], 0.0, has_run)
        return receiver
    await receiver.aclose()
    return await bench.begin()


@leases.check(LEASED)
async def a_message_says_what_is_left_of_its_lease(bench: AdapterBench) -> None:
    """`lease_s` is above 0; for the suite it is at most 5 s, because checks wait for it."""
    await bench.publish("a")
    await lease(bench, await bench.begin())


async def lease(bench: AdapterBench, receiver: GuardedReceiver) -> QueueMessage:
    """The one message, as it was read."""
    (found,) = await bench.collect(receiver, 1)
    is_so = 0 < found.lease_s <= LEASE_MAX_S
    expect(is_so, f"a lease of more than 0 and at most {LEASE_MAX_S:g} s", found.lease_s)
    return found


@leases.check(LEASED)
async def a_lease_that_runs_out_gives_the_message_back(bench: AdapterBench) -> None:
    """A message is not read again before its lease ends; after that it is read again, also by the
    same receiver."""
    await bench.publish("a")
    receiver, loop = await bench.begin(), asyncio.get_running_loop()
    first = await lease(bench, receiver)
    begin_s = loop.time()
    (again,) = await bench.collect(receiver, 1)
    took_s = loop.time() - begin_s
    is_so = took_s > first.lease_s / 2
    wanted = f"the message after about {first.lease_s:g} s"
    expect(is_so, wanted, f"the message after {took_s:.3f} s")
    expect(again.attempt >= first.attempt, f"attempt {first.attempt} or more", again.attempt)
    await receiver.ack(None, [again.token])
    found = await receiver.read(EVENTS_MAX, BYTES_MAX, first.lease_s * 2)
    expect(not found, "no message, because it was acknowledged", texts(found))


@leases.check(LEASED)
async def a_silent_owner_does_not_keep_messages(bench: AdapterBench) -> None:
    """The messages of an owner that has crashed are read by the next owner when their leases
    end."""
    await bench.publish("a", "b")
    silent = await bench.begin(1)
    await bench.collect(silent, 2)
    other = await bench.begin(2, silo=await bench.another_silo())
    bench.same(await bench.everything(other, 2), ["a", "b"])


@leases.check(LEASED)
async def extending_holds_a_message(bench: AdapterBench) -> None:
    """`extend` keeps a message from being read again, and does not return its token."""
    await bench.publish("a")
    receiver = await bench.begin()
    first = await lease(bench, receiver)
    await keep_leased(bench, receiver, [first])
    found = await receiver.read(EVENTS_MAX, BYTES_MAX, first.lease_s * 3)
    expect(not found, "no message while its lease is extended", texts(found))
    await receiver.ack(None, [first.token])


@leases.check(LEASED)
async def extending_lasts_as_long_as_was_asked(bench: AdapterBench) -> None:
    """`extend` keeps a message for the whole requested time from the call on; without another call,
    the message is read again after that."""
    await bench.publish("a")
    receiver, loop = await bench.begin(), asyncio.get_running_loop()
    found = await lease(bench, receiver)
    for asked_s in sorted({found.lease_s * 2, max(found.lease_s * 2, bench.hooks.patience_s)}):
        begin_s = loop.time()
        lost = await receiver.extend([found.token], asked_s)
        expect(not lost, "no lost lease of a message that was just read", lost)
        (found,) = await bench.collect(receiver, 1, asked_s)
        expect_late(loop.time() - begin_s, asked_s)
    await receiver.ack(None, [found.token])


@leases.check(LEASED)
async def a_long_list_is_extended_whole(bench: AdapterBench) -> None:
    """`extend` serves every token of its list, even if a request of the broker takes fewer."""
    await bench.adapter.enqueue(bench.queue, many(bench))
    receiver = await bench.begin()
    found = await bench.collect(receiver, LONG_LIST)
    await keep_leased(bench, receiver, found)
    longest_s = max(message.lease_s for message in found)
    again = await receiver.read(EVENTS_MAX, BYTES_MAX, longest_s * 2)
    wanted = f"none of the {LONG_LIST} messages while their leases are extended"
    expect(not again, wanted, texts(again))
    await receiver.ack(None, [message.token for message in found])


def many(bench: AdapterBench) -> list[OutMessage]:
    return [bench.message(f"{number:02}") for number in range(LONG_LIST)]


@leases.check(ITEM_ACK, excludes=(ORDERED,))
async def a_long_list_is_released_whole(bench: AdapterBench) -> None:
    """`release` returns every message of its list."""
    await bench.adapter.enqueue(bench.queue, many(bench))
    receiver = await bench.begin()
    found = await bench.collect(receiver, LONG_LIST)
    await keep_leased(bench, receiver, found)
    await receiver.release([message.token for message in found], 0.0, False)
    again = await bench.everything(receiver, LONG_LIST)
    bench.same(again, [f"{number:02}" for number in range(LONG_LIST)])


@leases.check(ITEM_ACK, Capability.OWN_POSITION)
async def a_long_list_is_acknowledged_whole(bench: AdapterBench) -> None:
    """`ack(None, also)` acknowledges every message of the list."""
    receiver, tokens = await all_but_the_last(bench)
    await receiver.ack(None, tokens)
    await receiver.aclose()
    bench.same(await bench.everything(await bench.begin(2), 1), ["last"])


async def all_but_the_last(bench: AdapterBench) -> tuple[GuardedReceiver, list[Token]]:
    """Read many messages and one more; returns the receiver and the tokens of the many."""
    await bench.adapter.enqueue(bench.queue, [*many(bench), bench.message("last")])
    receiver = await bench.begin()
    found = await bench.collect(receiver, LONG_LIST + 1)
    await keep_leased(bench, receiver, found)
    return receiver, [message.token for message in found if texts([message]) != ["last"]]


@leases.check(ITEM_ACK, Capability.OWN_POSITION, excludes=(ORDERED,))
async def what_has_failed_is_over(bench: AdapterBench) -> None:
    """`fail` (`TellsFailed`) settles every message of its list, and no other one, as `ack` does; a
    repeated call does no harm."""
    receiver, tokens = await all_but_the_last(bench)
    for _ in range(2):
        await receiver.fail(tokens, "given up")
    await receiver.aclose()
    bench.same(await bench.everything(await bench.begin(2), 1), ["last"])


@leases.check(LEASED)
async def extending_says_what_is_lost(bench: AdapterBench) -> None:
    """`extend` returns the tokens that this receiver does not have: acknowledged, released, or
    never read."""
    await bench.publish("a", "b", "c")
    receiver = await bench.begin()
    found = await bench.collect(receiver, 3)
    await keep_leased(bench, receiver, found)
    done, back, kept = (message.token for message in found)
    await receiver.ack(None, [done])
    await receiver.release([back], HELD_S, False)
    unknown = Token(1 << 20, 1 << 40)
    lost = await receiver.extend([done, back, kept, unknown], HELD_S)
    is_so = sorted(lost) == sorted([done, back, unknown])
    expect(is_so, f"the lost tokens {[done, back, unknown]}, without {kept}", list(lost))


@leases.check(LEASED)
async def a_lease_that_another_owner_has_is_lost(bench: AdapterBench) -> None:
    """`extend` returns the token of a message that another owner has read since."""
    await bench.publish("a")
    silent = await bench.begin(1)
    first = await lease(bench, silent)
    other = await bench.begin(1, silo=await bench.another_silo())
    (again,) = await bench.collect(other, 1)
    await keep_leased(bench, other, [again])
    lost = list(await silent.extend([first.token], HELD_S))
    expect(lost == [first.token], f"the lost token [{first.token}]", lost)


@leases.check(LEASED)
async def closing_gives_back_at_once(bench: AdapterBench) -> None:
    """`aclose` returns unacknowledged messages at once, long before their leases end."""
    await bench.publish("a", "b", "c")
    receiver = await bench.begin()
    found = {text: m for m in await bench.collect(receiver, 3) for text in texts([m])}
    await keep_leased(bench, receiver, list(found.values()))
    await receiver.ack(None, [found["b"].token])
    await receiver.aclose()
    bench.same(await bench.everything(await bench.begin(2), 2), ["a", "c"])


@leases.check(ITEM_ACK, excludes=(ORDERED,))
async def neighbours_are_read_while_one_is_out(bench: AdapterBench) -> None:
    """A message that is neither acknowledged nor released does not block other messages."""
    await bench.publish("a")
    receiver = await bench.begin()
    await keep_leased(bench, receiver, await bench.collect(receiver, 1))
    for number in range(5):
        await bench.publish(str(number))
        found = await bench.everything(receiver, 1)
        expect(texts(found) == [str(number)], str(number), texts(found))
