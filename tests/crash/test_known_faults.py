"""What users of other systems suffered, and the tests that it cannot happen here.

Each row: the symptom, where it was reported, and tests (file::name) that reproduce its cause. `docs/reliability.md` has
the same table for readers.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).resolve().parents[1]


class Fault(NamedTuple):
    """A known fault of others."""

    symptom: str
    source: str
    tests: tuple[str, ...]


FAULTS = {
    1: Fault(
        "acknowledged messages are lost at a power cut: synced every two minutes",
        "nats-io/nats-server#7564; jepsen.io/analyses/nats-2.12.1",
        (
            "crash/test_power_image.py::test_images_taken_at_random_times",
            "crash/test_power_cut.py::test_what_publishers_and_readers_know_survives_every_crash",
        ),
    ),
    2: Fault(
        "a whole stream is gone after a few kill -9: recovery deleted it as orphaned",
        "nats-io/nats-server#6888, #5382",
        (
            "crash/test_kill9.py::test_rounds_of_kill_9",
            "test_recovery.py::test_files_that_do_not_belong_are_renamed_never_removed",
            "test_state_lost.py::test_a_directory_that_nobody_knows_keeps_its_id",
        ),
    ),
    3: Fault(
        "one flipped bit loses a large run of records",
        "nats-io/nats-server#7549",
        (
            "crash/test_every_bit.py::test_every_bit_is_under_a_checksum_and_costs_its_own_batch",
            "test_recovery_damage.py::test_every_bit_of_a_header_flipped_costs_nothing",
            "test_recovery_damage.py::test_every_bit_of_a_footer_flipped_costs_nothing",
        ),
    ),
    4: Fault(
        "fsync fails, the second attempt succeeds, the data is gone",
        "wiki.postgresql.org/wiki/Fsync_Errors; Rebello et al., ATC 2020",
        (
            "crash/test_real_eio.py::test_nothing_acknowledged_or_read_is_lost",
            "crash/test_page_cache.py::test_failed_sync_restart_power_cut",
            "crash/test_strace.py::test_a_failed_sync_is_never_acknowledged_and_the_partition_is_read_only",
        ),
    ),
    5: Fault(
        "the result of fsync is not looked at",
        "redis/redis#8347, #8419",
        (
            "crash/test_faults.py::test_any_failing_call",
            "crash/test_faults.py::test_the_workload_meets_every_call_site",
            "test_rolling.py::test_a_footer_that_cannot_be_synced_makes_the_partition_read_only",
        ),
    ),
    6: Fault(
        "a power cut leaves garbage at the end, and the server does not start",
        "redis/redis#5177, #14058; etcd-io/etcd#11488, #6515, #4012",
        (
            "crash/test_every_bit.py::test_a_tail_torn_at_every_byte_keeps_all_whole_batches",
            "test_recovery.py::test_tails_that_are_no_batches_are_set_aside",
        ),
    ),
    7: Fault(
        "zeros read as valid entries",
        "apache/iggy#3946",
        (
            "test_batch_reading.py::test_zeros_are_no_batch",
            "crash/test_every_bit.py::test_a_tail_torn_at_every_byte_keeps_all_whole_batches",
            "test_index.py::test_entries_of_another_form_are_no_entries",
        ),
    ),
    8: Fault(
        "a corrupt index stops the start, or costs hours",
        "liftbridge-io/liftbridge#440; rabbitmq/osiris#79, #142; KAFKA-5829; camunda/camunda#12667",
        (
            "test_index.py::test_an_unusable_index_is_moved_aside_and_begun_anew",
            "crash/test_start_times.py::test_starts_with_many_records",
        ),
    ),
    9: Fault(
        "a start takes half an hour with tens of millions of messages",
        "nats-io/nats-server#4914; nats-io/nats-streaming-server#794",
        ("crash/test_start_times.py::test_starts_with_many_records",),
    ),
    10: Fault(
        "a file vanishes after a crash although it was synced: its directory was not",
        "apache/kafka#10405 (KAFKA-3968); vectordotdev/vector#25766",
        (
            "crash/test_every_call.py::test_ended_at_each_call",
            "crash/test_strace.py::test_files_and_directories_are_on_disk_before_the_first_acknowledgement",
        ),
    ),
    11: Fault(
        "a full disk disables or resets the stream",
        "nats-io/nats-server#7654, #3641; nsqio/nsq#938",
        (
            "crash/test_disk_full.py::test_the_engine_on_a_full_disk",
            "crash/test_disk_full.py::test_a_start_on_a_full_disk",
            "crash/test_disk_full.py::test_the_server_on_a_full_disk",
        ),
    ),
    12: Fault(
        "LMDB: MDB_MAP_FULL, or a map that grows without end",
        "mozilla/rkv#34, #47; hoytech/strfry#64",
        (
            "test_environment.py::test_growth_refused_by_the_system_leaves_the_old_map",
            "test_environment.py::test_a_smaller_map_where_addresses_are_limited",
        ),
    ),
    13: Fault(
        "SIGBUS when the disk is full",
        "jnwatson/py-lmdb#161",
        ("test_environment.py::test_a_full_disk_is_an_error_never_a_signal",),
    ),
    14: Fault(
        "MDB_BAD_RSLOT: an environment opened twice",
        "jnwatson/py-lmdb#129, #346, #269",
        (
            "test_environment.py::test_opened_once_in_a_process",
            "test_log.py::test_one_process_has_the_directory",
        ),
    ),
    15: Fault(
        "data stays days longer than it should; one record dated ahead blocks the rest",
        "conduktor.io and netdata.cloud, guides to Kafka's retention",
        (
            "test_log.py::test_an_idle_topic_with_retention_by_age_becomes_empty",
            "test_clock.py::test_a_record_dated_far_ahead_does_not_block_its_neighbours",
            "test_clock.py::test_nothing_expires_early_or_late_whatever_the_clock_does",
        ),
    ),
    16: Fault(
        "the cleaner's thread dies, and the disk fills weeks later",
        "KAFKA-7215",
        (
            "test_housekeeping.py::test_one_poisoned_topic_does_not_stop_the_others",
            "test_housekeeping.py::test_the_housekeeping_thread_survives_whatever_happens",
        ),
    ),
    17: Fault(
        "after a restart acknowledged messages come again, and others never",
        "nats-io/nats-streaming-server#72; nats-io/nats-server#5482; BlipMQ's own daemon",
        (
            "crash/test_blipmq_restart.py::test_ten_thousand_acks_nats_streaming_server_72_nats_server_5482",
            "crash/test_blipmq_restart.py::test_what_was_not_acknowledged_comes_back",
            "crash/test_blipmq_restart.py::test_rounds_of_kill_9",
        ),
    ),
    18: Fault(
        "what waits for acknowledgements names records that were trimmed: nulls and duplicates for ever",
        "redis/redis#6199, #5570, #13957",
        (
            "test_cursors.py::test_retention_passes_a_cursor",
            "test_blipmq_session.py::test_retention_over_unacknowledged_messages_redis_6199_5570_13957",
        ),
    ),
    19: Fault(
        "a position in the midst of a message: the rest of the file is thrown away",
        "nsqio/nsq#1514, #1491",
        ("crash/test_every_bit.py::test_reading_may_begin_at_any_byte",),
    ),
    20: Fault(
        "one corrupt record stops its consumers for ever",
        "aio-libs/aiokafka#321; KAFKA-6502",
        (
            "crash/test_damage_by_protocol.py::test_figg",
            "crash/test_damage_by_protocol.py::test_tank",
            "test_recovery_damage.py::test_a_sector_that_cannot_be_read_costs_its_batch_and_stops_nobody",
        ),
    ),
    21: Fault(
        "slow readers make the server run out of memory",
        "nats-io/nats.go#1163; influxdata/influxdb#21733",
        ("e2e/test_network.py::test_stalled_readers_nats_go_1163_influxdb_21733",),
    ),
    22: Fault(
        "a length of 4 bytes is an allocation of 4 GiB",
        "SaaSy-Solutions/mockforge#751; moscajs/aedes#1086",
        (
            "test_figg_codec.py::test_payload_size_above_the_limit_is_refused_from_the_header_alone",
            "test_connection_bounds.py::test_memory_follows_the_bytes_that_came_not_those_announced",
            "fuzz/test_fuzz_figg.py::test_a_server_under_any_input_ends_only_the_connections_that_sent_it",
        ),
    ),
    23: Fault(
        "accepting spins or stops for ever when descriptors run out",
        "python/cpython#151615; python/asyncio#78; joyent/libuv#690",
        (
            "test_engine_server.py::test_descriptors_used_up_python_cpython_151615_asyncio_78_libuv_690",
            "crash/test_many_partitions.py::test_more_partitions_than_descriptors",
        ),
    ),
    24: Fault(
        "a stop hangs while an idle client is connected",
        "python/cpython#104344; pgjones/hypercorn#308",
        ("e2e/test_network.py::test_stop_with_idle_streaming_and_stalled_clients_cpython_104344_hypercorn_308",),
    ),
}


def names_in(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", FAULTS)
def test_each_known_fault_has_tests(row: int) -> None:
    fault = FAULTS[row]
    assert fault.source
    assert fault.tests
    for test in fault.tests:
        file, _, name = test.partition("::")
        (path,) = TESTS.rglob(Path(file).name)
        assert str(path).endswith(f"/{file}")
        assert name in names_in(path), f"row {row}: {test} is not there any more"
