"""The cores of each room, and for each the tests that must see what is wrong with it."""

from __future__ import annotations

RUNTIME, STREAMS = "runtime/millstream/runtime", "streams/millstream/streams"
TURNS, CLUSTER, WIRE = "tests/runtime/turns", "tests/runtime/cluster", "tests/runtime/wire"
OWNERSHIP, AGENT = "tests/streams/ownership", "tests/streams/agent"

ACTIVATION = (
    f"{TURNS}/test_turn_rule.py",
    f"{TURNS}/test_turn_rule_model.py",
    f"{TURNS}/test_life_cycle.py",
    f"{TURNS}/test_contended_calls.py",
    f"{TURNS}/test_turn_ends.py",
    f"{TURNS}/test_ends_by_force.py",
)

ROOMS: dict[str, dict[str, tuple[str, ...]]] = {
    "turns": {
        f"{RUNTIME}/turns/turn_rule.py": ACTIVATION,
        f"{RUNTIME}/turns/mailbox.py": ACTIVATION,
        f"{RUNTIME}/turns/activation.py": ACTIVATION,
    },
    "cluster": {
        f"{RUNTIME}/cluster/votes.py": (f"{CLUSTER}/test_votes_ring_partition.py",),
        f"{RUNTIME}/cluster/directory/partition.py": (f"{CLUSTER}/test_votes_ring_partition.py",),
    },
    "wire": {
        f"{RUNTIME}/wire/framing.py": (
            f"{WIRE}/test_frames.py",
            f"{WIRE}/test_connection_garbage.py",
        ),
    },
    "ownership": {f"{STREAMS}/ownership/decision.py": (OWNERSHIP,)},
    "agent": {f"{STREAMS}/agent/delivery.py": (AGENT,)},
}
