"""The cores of each package, and the tests that must detect faults in each core.

A core decides without I/O; the simulator tests the drivers. Tests of the core itself come first in
their folder, because tests of drivers take longer to detect the same fault.
"""

from __future__ import annotations

RUNTIME, STREAMS = "runtime/millstream/runtime", "streams/millstream/streams"
MEMORY, BUFFER = "providers/millstream/providers/memory", "tests/providers/buffer"
GROUND, CODEC, DEFINITION = "tests/runtime", "tests/runtime/codec", "tests/runtime/definition"
WIRE, TURNS, CALLS = "tests/runtime/wire", "tests/runtime/turns", "tests/runtime/calls"
REMINDERS = "tests/runtime/reminders"
CLUSTER, SILO, CLIENT = "tests/runtime/cluster", "tests/runtime/silo", "tests/runtime/client"
CONTRACTS, PUBLISHING = "tests/streams/contracts", "tests/streams/publishing"
REWINDING, SPARK = "tests/streams/rewinding", "providers/pyspark_millstream"
INDEX = "providers/millstream/providers/spark/index"
RULES = "tests/streams/staging/test_coordinator_rules.py"
STAGING = "tests/streams/staging/test_coordinator_model.py"
REFUSED = "tests/streams/staging/test_refused.py"
DESK = "tests/streams/staging/test_desk.py"
STAGED = "tests/streams/staging"
OWNERSHIP, AGENT = "tests/streams/ownership", "tests/streams/agent"
BALANCING, BALANCERS = "balancers/millstream/balancers", "tests/balancers"

DISK = ("tests/runtime/disk/test_seam.py", "tests/runtime/disk/test_real.py")
SIM_DISK = (
    "tests/runtime/testing/test_sim_disk.py",
    "tests/runtime/testing/test_sim_disk_hosts.py",
)

ACTIVATION = (
    f"{TURNS}/test_turn_rule_core.py",
    f"{TURNS}/test_turn_rule_model.py",
    f"{TURNS}/test_turn_rule.py",
    f"{TURNS}/test_life_cycle.py",
    f"{CALLS}/test_waiting_bytes.py",
    f"{TURNS}/test_reentrancy.py",
)
FILTERS = (f"{CALLS}/test_filters.py", f"{CALLS}/test_flowing_headers.py")
CACHE = (f"{AGENT}/test_cache_rules.py", f"{AGENT}/test_cache.py")
READER = (f"{AGENT}/test_reader_core.py", f"{AGENT}/test_reader_random.py")
BEHIND = (
    f"{AGENT}/test_behind_rules.py",
    f"{AGENT}/test_behind_one.py",
    f"{AGENT}/test_behind_book.py",
    f"{AGENT}/test_behind_model.py",
    f"{AGENT}/test_listing.py",
    f"{AGENT}/test_reread_messages.py",
    f"{AGENT}/test_behind.py",
)
BY_HAND = (
    f"{AGENT}/test_by_hand_cursor.py",
    f"{AGENT}/test_by_hand_rules.py",
    f"{AGENT}/test_by_hand_model.py",
)
DEATHS = (f"{AGENT}/test_deaths.py",)
DELIVERY = (
    f"{AGENT}/test_delivery_core.py",
    f"{AGENT}/test_delivery_rules.py",
    f"{AGENT}/test_delivery_random.py",
    *DEATHS,
    f"{AGENT}/test_releases.py",
)
VIEWS = (f"{CLUSTER}/test_votes_ring_partition.py",)
RANGE = (f"{CLUSTER}/test_directory_range.py", f"{CLUSTER}/test_directory.py")
TOPICS = (
    f"{BUFFER}/test_producer.py",
    f"{BUFFER}/test_consumer.py",
    f"{BUFFER}/test_buffer_vectors.py",
    f"{BUFFER}/test_buffer_model.py",
)
PARTITIONS = (
    "tests/providers/test_memory_partition.py",
    "tests/providers/test_memory_segments.py",
    "tests/providers/test_memory_bytes.py",
)
BOOKIE, BOOKIES = "providers/millstream/providers/ledger/bookie", "tests/providers/ledger/bookie"
FORM = (f"{BOOKIES}/test_form.py", f"{BOOKIES}/test_bookie.py", f"{BOOKIES}/test_tails.py")
OPENED = (
    f"{BOOKIES}/test_loading.py",
    f"{BOOKIES}/test_walk.py",
    f"{BOOKIES}/test_form.py",
    f"{BOOKIES}/test_tails.py",
    f"{BOOKIES}/test_directory.py",
    f"{BOOKIES}/test_bookie.py",
    f"{BOOKIES}/test_collection.py",
    f"{BOOKIES}/test_crashes.py",
)
LEDGER, LEDGERS = "providers/millstream/providers/ledger", "tests/providers/ledger"
HANDLE = (
    f"{LEDGERS}/test_handle_parts.py",
    f"{LEDGERS}/test_bookie_sender.py",
    f"{LEDGERS}/test_census.py",
    f"{LEDGERS}/test_handle_schedules.py",
    f"{LEDGERS}/test_handle_reading.py",
    f"{LEDGERS}/test_handle_writing.py",
    f"{LEDGERS}/test_handle_recovery.py",
    f"{LEDGERS}/test_handle_loss.py",
    f"{LEDGERS}/test_handle.py",
    f"{LEDGERS}/test_loss.py",
)
ROWS = (
    f"{LEDGERS}/test_rows_steps.py",
    f"{LEDGERS}/test_metadata_rows.py",
    f"{LEDGERS}/test_witnessed_rows.py",
    f"{LEDGERS}/test_rows_put_back.py",
    f"{LEDGERS}/test_census.py",
    f"{LEDGERS}/test_scans.py",
)
COPIES = (
    f"{LEDGERS}/test_recovery_cores.py",
    f"{LEDGERS}/test_recovery_report.py",
    f"{LEDGERS}/test_recovery.py",
    f"{LEDGERS}/test_draining.py",
    f"{LEDGERS}/test_recovery_topics.py",
    f"{LEDGERS}/test_scans.py",
)
SCRUBBING = (
    f"{LEDGERS}/test_scrubbing_cores.py",
    f"{BOOKIES}/test_checking.py",
    f"{LEDGERS}/test_scrubbing.py",
)
CORES = f"{LEDGERS}/test_topic_cores.py"
APPENDING = (
    f"{LEDGERS}/test_topic_outbox.py",
    CORES,
    f"{LEDGERS}/test_topic_append.py",
    f"{LEDGERS}/test_topic_takeover.py",
    f"{LEDGERS}/test_topic_histories.py",
)
TOPIC_READING = (
    f"{LEDGERS}/test_topic_tail.py",
    CORES,
    f"{LEDGERS}/test_topic_reading.py",
)
CURSORS = (f"{LEDGERS}/test_topic_cursors.py", f"{LEDGERS}/test_rows_put_back.py")
PRIORITY, PRIORITIES = "providers/millstream/providers/priority", "tests/providers/priority"
PRIORITY_CORE = (
    f"{PRIORITIES}/test_core_vectors.py",
    f"{PRIORITIES}/test_filters.py",
    f"{PRIORITIES}/test_grouped.py",
    f"{PRIORITIES}/test_core_changes.py",
    f"{PRIORITIES}/test_core_contents.py",
    f"{PRIORITIES}/test_core_requests.py",
    f"{PRIORITIES}/test_strays.py",
    f"{PRIORITIES}/test_core_limits.py",
    f"{PRIORITIES}/test_core_sessions.py",
    f"{PRIORITIES}/test_core_costs.py",
    f"{PRIORITIES}/test_payloads.py",
    f"{PRIORITIES}/test_core_clock.py",
    f"{PRIORITIES}/test_core_model.py",
    f"{PRIORITIES}/test_requeue.py",
    f"{PRIORITIES}/test_shards.py",
)
LAYOUT = (f"{OWNERSHIP}/test_layout.py", f"{OWNERSHIP}/test_mapper_record.py")
NAMES = (f"{DEFINITION}/test_keys.py", f"{DEFINITION}/test_refusals.py")

ROOMS: dict[str, dict[str, tuple[str, ...]]] = {
    "ground": {
        f"{RUNTIME}/backoff.py": (f"{GROUND}/test_backoff.py",),
        f"{RUNTIME}/text.py": (f"{GROUND}/test_text.py",),
        f"{RUNTIME}/sealed_rows.py": (f"{GROUND}/test_sealed_rows.py",),
        f"{RUNTIME}/damage.py": (f"{GROUND}/test_damage.py",),
    },
    "bookie": {
        **{
            f"{BOOKIE}/form/{name}.py": FORM
            for name in ("envelope", "frame", "segment", "intervals", "runs", "index", "state")
        },
        f"{BOOKIE}/form/identity.py": FORM,
        f"{BOOKIE}/form/sealed.py": FORM,
        f"{BOOKIE}/form/walk.py": OPENED,
        f"{BOOKIE}/form/tail.py": (f"{BOOKIES}/test_store.py", *OPENED),
        f"{BOOKIE}/form/loader.py": OPENED,
        f"{BOOKIE}/disk_space.py": (f"{BOOKIES}/test_disk_space.py",),
        f"{BOOKIE}/cache.py": (f"{BOOKIES}/test_disk_space.py",),
        f"{BOOKIE}/watches.py": (f"{BOOKIES}/test_bookie.py",),
        f"{BOOKIE}/store.py": (f"{BOOKIES}/test_store.py", *OPENED),
    },
    "metadata": {
        f"{LEDGER}/metadata/ledgers.py": (f"{LEDGERS}/test_ledger_numbers.py", *ROWS),
        **{f"{LEDGER}/metadata/{name}.py": ROWS for name in ("rows", "witness")},
    },
    "protocol": {
        f"{LEDGER}/protocol/{name}.py": (f"{LEDGERS}/test_protocol_{name}.py",)
        for name in ("append_core", "entry", "quorum", "record", "recovery_core")
    },
    "handle": {
        f"{LEDGER}/handle/{name}.py": HANDLE
        for name in (
            *("bookie_sender", "bookies", "context", "hedging", "ledger_sender", "ledgers"),
            *("loss", "reader", "recovery", "writer"),
        )
    },
    "recovery": {
        f"{LEDGER}/recovery/{name}.py": COPIES
        for name in (
            *("agenda", "auditor", "bookie_standing", "changes", "copier", "copy_rate", "needs"),
            *("repairer", "report"),
        )
    },
    "scrubbing": {
        **{f"{BOOKIE}/damage/{name}.py": SCRUBBING for name in ("segment_check", "suspects")},
        **{
            f"{LEDGER}/scrubbing/{name}.py": SCRUBBING
            for name in ("docket", "repairer", "scrubber", "wanted")
        },
    },
    "topic": {
        f"{LEDGER}/topic/form.py": (*APPENDING, *TOPIC_READING),
        f"{LEDGER}/topic/record.py": (
            f"{LEDGERS}/test_topic_rows.py",
            f"{LEDGERS}/test_topic_tail.py",
            *APPENDING,
            f"{LEDGERS}/test_topic_each_step.py",
        ),
        f"{LEDGER}/topic/appending/outbox.py": APPENDING,
        f"{LEDGER}/topic/appending/producers.py": APPENDING,
        f"{LEDGER}/topic/appending/append_queue.py": APPENDING,
        f"{LEDGER}/topic/reading/index.py": TOPIC_READING,
        f"{LEDGER}/topic/reading/tail.py": TOPIC_READING,
        f"{LEDGER}/topic/cursors/acknowledged.py": CURSORS,
        f"{LEDGER}/topic/cursors/retention.py": CURSORS,
    },
    "priority": {
        f"{PRIORITY}/core/{name}.py": PRIORITY_CORE
        for name in (
            *("body", "changes", "contents", "core", "message", "reading", "settings"),
            *("moves/entering", "moves/leasing", "moves/taking"),
            *("requests/answers", "requests/sessions"),
            *("index/filters", "index/grouped", "index/plain", "index/timers"),
        )
    }
    | {
        f"{PRIORITY}/jobs/decision.py": (f"{PRIORITIES}/test_job_cores.py",),
        f"{PRIORITY}/jobs/row.py": (
            f"{PRIORITIES}/test_job_cores.py",
            f"{PRIORITIES}/test_jobs.py",
        ),
        f"{PRIORITY}/jobs/status.py": (f"{PRIORITIES}/test_jobs.py",),
        f"{PRIORITY}/owner/relative.py": (f"{PRIORITIES}/test_job_cores.py",),
        f"{PRIORITY}/core/index/available.py": (f"{PRIORITIES}/test_available.py",),
        f"{PRIORITY}/core/strays.py": (f"{PRIORITIES}/test_strays.py",),
        f"{PRIORITY}/core/shards.py": (*PRIORITY_CORE[:1], f"{PRIORITIES}/test_shards.py"),
        f"{PRIORITY}/store/clock.py": (f"{PRIORITIES}/test_clock.py",),
        f"{PRIORITY}/owner/waiting.py": (f"{PRIORITIES}/test_waiting.py",),
        f"{PRIORITY}/redis/demands.py": (f"{PRIORITIES}/test_redis_demands.py",),
        f"{PRIORITY}/redis/loading.py": (f"{PRIORITIES}/test_redis_rows.py",),
        f"{PRIORITY}/redis/rows.py": (f"{PRIORITIES}/test_redis_rows.py",),
    },
    "disk": {
        f"{RUNTIME}/disk/seam.py": DISK,
        f"{RUNTIME}/disk/real.py": DISK,
        f"{RUNTIME}/disk/thread.py": DISK,
        f"{RUNTIME}/disk/whole.py": (*DISK, *SIM_DISK),
        f"{RUNTIME}/testing/world/disk/content.py": SIM_DISK,
        f"{RUNTIME}/testing/world/disk/names.py": (*DISK, *SIM_DISK),
        f"{RUNTIME}/testing/world/disk/medium.py": SIM_DISK,
        f"{RUNTIME}/testing/world/disk/file.py": (*DISK, *SIM_DISK),
        f"{RUNTIME}/testing/world/disk/thread.py": (*DISK, *SIM_DISK),
        f"{RUNTIME}/testing/world/disk/simulated.py": (*DISK, *SIM_DISK),
    },
    "codec": {
        f"{RUNTIME}/codec/rules.py": (CODEC,),
        f"{RUNTIME}/codec/unions.py": (CODEC,),
    },
    "definition": {
        f"{RUNTIME}/definition/names.py": (*NAMES, f"{DEFINITION}/test_state_writes.py"),
        f"{RUNTIME}/definition/headers.py": (
            f"{DEFINITION}/test_references.py",
            *FILTERS,
            f"{TURNS}/test_reentrancy.py",
        ),
        f"{RUNTIME}/definition/filters.py": (*FILTERS, f"{TURNS}/test_reentrancy.py"),
        f"{RUNTIME}/definition/parcels.py": (f"{DEFINITION}/test_parcels.py",),
        f"{RUNTIME}/definition/versions.py": (f"{DEFINITION}/test_versions.py",),
        f"{RUNTIME}/definition/upgrades.py": (f"{DEFINITION}/test_upgrades.py",),
    },
    "wire": {
        f"{RUNTIME}/wire/framing.py": (
            f"{WIRE}/test_frames.py",
            f"{WIRE}/test_connection_garbage.py",
            f"{WIRE}/test_frame_room.py",
        ),
        f"{RUNTIME}/wire/address.py": (f"{WIRE}/test_address.py", *VIEWS),
        f"{RUNTIME}/wire/batch.py": (
            f"{WIRE}/test_flow.py",
            f"{WIRE}/test_served_limit.py",
            f"{WIRE}/test_connection_garbage.py",
        ),
    },
    "turns": {
        f"{RUNTIME}/turns/turn_rule.py": ACTIVATION,
        f"{RUNTIME}/turns/mailbox.py": ACTIVATION,
        f"{RUNTIME}/turns/activation.py": ACTIVATION,
        f"{RUNTIME}/turns/flows.py": (f"{TURNS}/test_reentrancy.py", *FILTERS),
        f"{RUNTIME}/turns/deadlines.py": (f"{TURNS}/test_deadlines_core.py",),
        f"{RUNTIME}/turns/budget.py": (f"{TURNS}/test_deadlines_core.py",),
        f"{RUNTIME}/turns/result_buffer.py": (f"{TURNS}/test_result_buffer.py",),
        f"{RUNTIME}/turns/package.py": (
            f"{CLUSTER}/test_migrations.py",
            "tests/streams/consumer/test_positions.py",
        ),
        f"{RUNTIME}/turns/results.py": (f"{CALLS}/test_streamed_results.py",),
        f"{RUNTIME}/turns/task_groups.py": (f"{TURNS}/test_task_groups.py",),
    },
    "calls": {
        f"{RUNTIME}/calls/result_reader.py": (f"{CALLS}/test_streamed_results.py",),
        f"{RUNTIME}/role.py": (f"{SILO}/test_door.py", "tests/test_doors.py"),
        f"{RUNTIME}/calls/cycles.py": (
            f"{TURNS}/test_turn_rule.py",
            f"{TURNS}/test_reentrancy.py",
            f"{TURNS}/test_cancellation_deadlines.py",
            CALLS,
        ),
        f"{RUNTIME}/calls/waits.py": (
            f"{CALLS}/test_waits.py",
            f"{TURNS}/test_turn_rule.py",
            f"{TURNS}/test_contended_calls.py",
            CALLS,
        ),
    },
    "reminders": {
        f"{RUNTIME}/reminders/schedule.py": (f"{REMINDERS}/test_schedule.py",),
        f"{RUNTIME}/reminders/agenda.py": (f"{REMINDERS}/test_agenda.py",),
        f"{RUNTIME}/reminders/record.py": (
            f"{REMINDERS}/test_agenda.py",
            f"{REMINDERS}/test_reminders.py",
        ),
    },
    "cluster": {
        f"{RUNTIME}/cluster/votes.py": VIEWS,
        f"{RUNTIME}/cluster/ring.py": (*VIEWS, *RANGE),
        f"{RUNTIME}/cluster/placement.py": VIEWS,
        f"{RUNTIME}/cluster/load.py": (f"{CLUSTER}/test_load.py",),
        f"{RUNTIME}/cluster/rebalance.py": (f"{CLUSTER}/test_rebalance.py",),
        f"{RUNTIME}/machine.py": ("tests/runtime/test_machine.py",),
        f"{RUNTIME}/cluster/changes.py": VIEWS,
        f"{RUNTIME}/cluster/migrations.py": (f"{CLUSTER}/test_migrations.py",),
        f"{RUNTIME}/cluster/limited_table.py": (f"{CLUSTER}/test_own_table.py",),
        f"{RUNTIME}/cluster/agreement.py": (f"{SILO}/test_one_configuration.py",),
        f"{RUNTIME}/cluster/client_leases.py": (f"{CLUSTER}/test_client_leases.py",),
        f"{RUNTIME}/cluster/directory/partition.py": (
            *VIEWS,
            f"{CLUSTER}/test_client_leases.py",
        ),
        f"{RUNTIME}/cluster/directory/range.py": RANGE,
    },
    "silo": {f"{RUNTIME}/silo/agreement.py": (f"{SILO}/test_one_configuration.py",)},
    "client": {
        f"{RUNTIME}/client/gateway_list.py": (CLIENT,),
        f"{RUNTIME}/client/eviction_watch.py": (CLIENT,),
        f"{RUNTIME}/client/gateway_table.py": (f"{CLIENT}/test_gateway_table.py",),
        f"{RUNTIME}/silo/gateway_news.py": (f"{CLIENT}/test_gateway_news.py",),
    },
    "contracts": {
        f"{STREAMS}/contracts/answers.py": (f"{CONTRACTS}/test_answers.py",),
        f"{STREAMS}/contracts/capability.py": (f"{CONTRACTS}/test_capability.py",),
        f"{STREAMS}/contracts/push.py": (f"{CONTRACTS}/test_push.py",),
    },
    "failures": {
        f"{STREAMS}/failures/letters.py": ("tests/streams/failures/test_letters.py",),
    },
    "publishing": {
        f"{STREAMS}/publishing/split.py": (f"{PUBLISHING}/test_split.py",),
        f"{STREAMS}/publishing/send_queue.py": (
            f"{PUBLISHING}/test_send_queue.py",
            f"{PUBLISHING}/test_sender.py",
        ),
        f"{STREAMS}/publishing/numbered.py": (f"{PUBLISHING}/test_numbered.py",),
    },
    "rewinding": {
        f"{STREAMS}/rewinding/claims.py": (f"{REWINDING}/test_claims.py",),
        f"{STREAMS}/rewinding/incarnation.py": (f"{REWINDING}/test_target.py",),
        f"{STREAMS}/rewinding/item_columns.py": (f"{REWINDING}/test_item_columns.py",),
    },
    "spark": {
        f"{SPARK}/offsets.py": ("tests/providers/test_spark_offsets.py",),
        f"{SPARK}/columns.py": ("tests/providers/test_spark_columns.py",),
        f"{SPARK}/values.py": (
            "tests/providers/test_spark_values.py",
            "tests/providers/test_spark_rows.py",
        ),
        f"{INDEX}/changes.py": ("tests/providers/index",),
        f"{INDEX}/verify.py": ("tests/providers/index",),
    },
    "staging": {
        f"{STREAMS}/staging/batch.py": (STAGING,),
        f"{STREAMS}/staging/coordinator.py": (RULES, STAGING, REFUSED),
        f"{STREAMS}/staging/desk.py": (REFUSED, DESK, f"{STAGED}/test_damaged_rows.py"),
        f"{STREAMS}/staging/rows.py": (f"{STAGED}/test_damaged_rows.py", DESK, REFUSED),
    },
    "api": {
        f"{STREAMS}/api/subscription_rows.py": (
            "tests/streams/api/test_rows_of_streams.py",
            "tests/streams/api/test_damaged_subscriptions.py",
        ),
    },
    "consumer": {
        f"{STREAMS}/consumer/fresh.py": ("tests/streams/consumer/test_fresh.py",),
    },
    "ownership": {
        f"{STREAMS}/ownership/decision.py": (
            f"{OWNERSHIP}/test_ownership.py",
            f"{OWNERSHIP}/test_ownership_races.py",
            *DEATHS,
        ),
        f"{STREAMS}/ownership/unread.py": (f"{OWNERSHIP}/test_unread.py",),
        f"{STREAMS}/ownership/layout.py": LAYOUT,
        f"{STREAMS}/ownership/mapper_record.py": LAYOUT,
        f"{STREAMS}/ownership/function_mapper.py": (f"{OWNERSHIP}/test_function_mapper.py",),
        f"{STREAMS}/ownership/sound.py": (f"{OWNERSHIP}/test_function_mapper.py",),
    },
    "balancers": {
        f"{BALANCING}/best_fit.py": (f"{BALANCERS}/test_best_fit.py",),
        f"{BALANCING}/lease.py": (f"{BALANCERS}/test_lease.py",),
        f"{BALANCING}/ring.py": (f"{BALANCERS}/test_ring.py",),
        f"{BALANCING}/rounds.py": (
            f"{BALANCERS}/test_rounds.py",
            f"{BALANCERS}/test_deployment.py",
        ),
    },
    "agent": {
        f"{STREAMS}/agent/flow.py": (f"{AGENT}/test_flow.py",),
        f"{STREAMS}/agent/cache/lane.py": CACHE,
        f"{STREAMS}/agent/cache/cursor.py": (*CACHE, *BEHIND, *BY_HAND),
        f"{STREAMS}/agent/cache/queue_cache.py": (*CACHE, *READER, *BEHIND),
        f"{STREAMS}/agent/cache/lagging_cursors.py": BEHIND,
        f"{STREAMS}/agent/cache/positions.py": BEHIND,
        f"{STREAMS}/agent/cache/reread_messages.py": BEHIND,
        f"{STREAMS}/agent/audience/handover_list.py": BEHIND,
        f"{STREAMS}/agent/progress/tracker.py": (
            *BEHIND,
            f"{AGENT}/test_standing.py",
            f"{AGENT}/test_undone_up_to.py",
        ),
        f"{STREAMS}/agent/reading/reader.py": (
            f"{AGENT}/test_reader_rules.py",
            f"{AGENT}/test_leases.py",
            f"{AGENT}/test_releases.py",
            *READER,
        ),
        f"{STREAMS}/agent/reading/settlement.py": (
            f"{AGENT}/test_settling.py",
            f"{AGENT}/test_leases.py",
            *READER,
        ),
        f"{STREAMS}/agent/reading/leases.py": (f"{AGENT}/test_leases.py",),
        f"{STREAMS}/agent/reading/relief.py": (f"{AGENT}/test_relief.py",),
        f"{STREAMS}/agent/delivery/delivery.py": (*DELIVERY, *BY_HAND),
        f"{STREAMS}/agent/progress/wary.py": DEATHS,
        f"{STREAMS}/agent/delivery/deaths.py": DEATHS,
        f"{STREAMS}/agent/losses.py": (
            f"{AGENT}/test_gaps.py",
            f"{AGENT}/test_standing.py",
            f"{AGENT}/test_losses_handed_over.py",
        ),
        f"{STREAMS}/agent/watchdog/standstill.py": (f"{AGENT}/test_standstill.py",),
        f"{STREAMS}/agent/watchdog/waits.py": (
            f"{AGENT}/test_reasons.py",
            f"{AGENT}/test_standing_still.py",
        ),
    },
    "insight": {f"{STREAMS}/insight/verdict.py": ("tests/streams/insight/test_verdict.py",)},
    "memory": {
        f"{MEMORY}/queue_log.py": (
            "tests/providers/test_memory_log.py",
            "tests/providers/test_memory_queue.py",
        ),
        f"{MEMORY}/gate.py": ("tests/providers/test_memory_gate.py",),
        f"{MEMORY}/room.py": ("tests/providers/test_memory_room.py",),
        f"{MEMORY}/segments.py": PARTITIONS,
        f"{MEMORY}/partition.py": PARTITIONS,
        f"{MEMORY}/buffer/routing.py": TOPICS,
        f"{MEMORY}/buffer/producer.py": TOPICS,
        f"{MEMORY}/buffer/consumer.py": TOPICS,
    },
}
