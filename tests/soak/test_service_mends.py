"""Mutation controls for fixes whose tests need a server, Spark or another user."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from mend_tools import Mend, assert_green

if TYPE_CHECKING:
    from pathlib import Path

LONG = 120
"""Seconds for a test that should pass."""
SHORT = 90
"""Seconds after which a test that should fail has done so: without its rule some wait for ever."""
PATIENCE = 900
"""Seconds for all of the tests without an edit."""

MENDS = (
    # The start position of a reader.
    Mend(
        "partitions that are added later",
        "adaptors/transporter_adaptors/kafka/group.py",
        "at_end = [held for held in unknown if held.topic in new]",
        "at_end = unknown",
        "tests/integration/test_kafka_reader.py",
        ("test_partitions_added_later_are_read_from_their_beginning",),
    ),
    Mend(
        "topics that a pattern finds later",
        "adaptors/transporter_adaptors/kafka/group.py",
        "self._position().topics or len(new) < len(topics)",
        "False",
        "tests/integration/test_kafka_reader.py",
        ("test_topics_that_a_pattern_finds_later_are_read_from_their_beginning",),
    ),
    # A full log.
    Mend(
        "notifications are taken while nothing is read",
        "engine/reading/feed.py",
        "            self._keep_alive_reader.keep_alive()\n",
        "            pass\n",
        "tests/integration/test_outbox_notifications.py",
        ("test_commits_go_on_while_the_log_is_full",),
    ),
    Mend(
        "a full log is waited for in parts of a term",
        "engine/reading/batch_appender.py",
        "if self._stopping.wait(min(left, self._wait_interval)):",
        "if self._stopping.wait(left):",
        "tests/integration/test_outbox_notifications.py",
        ("test_a_term_goes_on_while_the_log_is_full",),
    ),
    # Retention of topics.
    Mend(
        "topics of a queue keep what waits",
        "queue/topics.py",
        '        "retention.ms": str(kept_ms),\n',
        "",
        "tests/integration/test_queue_retention.py",
        ("test_topics_of_a_queue_keep_what_waits_and_what_is_dead",),
    ),
    Mend(
        "topics that delete what waits are named",
        "queue/topics.py",
        'if _is_less(found.get("retention.ms"), least):',
        "if False:",
        "tests/integration/test_queue_retention.py",
        ("test_topics_that_delete_what_waits_are_named_with_what_helps",),
    ),
    Mend(
        "a mistyped topic is not created",
        "adaptors/transporter_adaptors/kafka/writer.py",
        "            return False\n        raise KafkaException(found.error)",
        "            return True\n        raise KafkaException(found.error)",
        "tests/integration/test_kafka_topics.py",
        ("test_a_missing_topic_is_named_and_tried_again_and_not_created",),
    ),
    # Sessions of PostgreSQL.
    Mend(
        "texts of a SQL_ASCII database are read as they are",
        "adaptors/transporter_adaptors/postgres/session.py",
        '!= "SQL_ASCII"',
        '!= ""',
        "tests/integration/test_postgres_take.py",
        ("test_a_row_that_is_not_utf8_is_a_bad_row",),
    ),
    Mend(
        "of several hosts the primary",
        "adaptors/transporter_adaptors/postgres/session.py",
        'chosen.setdefault("target_session_attrs", "read-write")',
        "pass",
        "tests/integration/test_postgres_outbox.py",
        ("test_of_several_hosts_the_one_that_takes_writes_is_read",),
    ),
    Mend(
        "a server that says nothing is given up",
        "adaptors/transporter_adaptors/postgres/session.py",
        "            gen = _limit_time(gen, time.monotonic() + self.patience)\n",
        "",
        "tests/integration/test_outbox_terms.py",
        ("test_a_server_that_hangs_is_given_up_without_an_elector",),
    ),
    Mend(
        "a batch that is too large for a term is halved",
        "adaptors/transporter_adaptors/postgres/reader.py",
        "        if not self._portion.halve():\n            raise slow\n",
        "        raise slow\n",
        "tests/integration/test_outbox_terms.py",
        ("test_a_batch_too_large_for_a_term_is_halved",),
    ),
    Mend(
        "a pooler of transactions is refused",
        "adaptors/transporter_adaptors/postgres/session.py",
        "            if not is_checked:\n",
        "            if False:\n",
        "tests/integration/test_postgres_sessions.py",
        ("test_a_pooler_of_transactions_is_refused_and_left_as_it_was",),
    ),
    Mend(
        "a sequence that sessions cache is told of",
        "adaptors/transporter_adaptors/postgres/inspection.py",
        "WHERE s.seqcache > 1 AND",
        "WHERE false AND",
        "tests/integration/test_postgres_sessions.py",
        ("test_a_sequence_that_sessions_cache_is_told_of",),
    ),
    Mend(
        "a view that cannot be changed is refused",
        "adaptors/transporter_adaptors/postgres/inspection.py",
        "if events & needed != needed:",
        "if False:",
        "tests/integration/test_postgres_outbox.py",
        ("test_a_view_that_cannot_be_changed_is_refused_at_open",),
    ),
    Mend(
        "a fatal error is followed by a new client",
        "adaptors/transporter_adaptors/kafka/slice.py",
        "            self.fatal_error = kafka_error(error)\n",
        "            pass\n",
        "tests/integration/test_kafka_writer.py",
        ("test_a_fatal_error_is_followed_by_a_new_client",),
    ),
    # Other users of the host.
    Mend(
        "Spark authenticates on one host, too",
        "spark/launch.py",
        '"spark.authenticate": "true"',
        '"spark.authenticate": "false"',
        "tests/acceptance/test_neighbours.py",
        ("test_a_group_member_reaches_nothing",),
    ),
    Mend(
        "sockets of workers are in a private folder",
        "spark/host.py",
        '{"spark.python.unix.domain.socket.dir": sockets} if local else {}',
        "{}",
        "tests/acceptance/test_neighbours.py",
        ("test_a_group_member_reaches_nothing",),
    ),
    Mend(
        "the folder of a start is no code",
        "spark/launch.py",
        'SAFE_PATH: Final = {"PYTHONSAFEPATH": "1"}',
        "SAFE_PATH: Final = {}",
        "tests/acceptance/test_neighbours.py",
        ("test_a_group_member_reaches_nothing",),
    ),
    Mend(
        "no setting is on a command line",
        "spark/jvm.py",
        '                    "--properties-file",\n',
        '                    *(f"--conf={name}={value}" for name, value in settings.items()),\n'
        '                    "--properties-file",\n',
        "tests/unit/spark/test_jvm.py",
        ("test_no_setting_is_on_a_command_line",),
    ),
    Mend(
        "what Spark logs is closed to others",
        "spark/launch.py",
        "os.fchmod(descriptor, 0o600)",
        "os.fchmod(descriptor, 0o644)",
        "tests/acceptance/test_neighbours.py",
        ("test_a_group_member_reaches_nothing",),
    ),
    # The hand-over from the copy of a table to its stream.
    Mend(
        "a chunk waits for writers from before the publication",
        "adaptors/transporter_adaptors/postgres_cdc/handover.py",
        "if copy.boundary is None and snapshot.xmin",
        "if False and snapshot.xmin",
        "tests/integration/test_cdc_schedules.py",
        ("test_the_first_chunk_waits_for_a_writer_from_before_the_publication",),
    ),
    Mend(
        "a chunk waits for commits that hang",
        "adaptors/transporter_adaptors/postgres_cdc/handover.py",
        "        return not self.passed\n",
        "        return True\n",
        "tests/integration/test_cdc_schedules.py",
        ("test_a_chunk_waits_for_a_commit_that_hangs",),
    ),
    Mend(
        "what was passed is in the position",
        "adaptors/transporter_adaptors/postgres_cdc/reader.py",
        "            passed=frozenset(self._handover.passed),\n",
        "",
        "tests/integration/test_cdc_schedules.py",
        ("test_a_chunk_waits_for_a_commit_that_hangs",),
    ),
    Mend(
        "a chunk waits for the server's log",
        "adaptors/transporter_adaptors/postgres_cdc/chunk_reader.py",
        "            if not self._is_flushed(end):\n                return None\n",
        "",
        "tests/integration/test_cdc_schedules.py",
        ("test_a_chunk_waits_until_the_server_cannot_lose_it",),
    ),
    Mend(
        "a chunk and the stream share a key's changes",
        "adaptors/transporter_adaptors/postgres_cdc/handover.py",
        "return not chunk.snapshot.sees(",
        "return chunk.snapshot.sees(",
        "tests/integration/test_cdc_schedules.py",
        ("test_a_chunk_has_what_it_saw_and_the_stream_the_rest",),
    ),
    Mend(
        "a repeated copy leaves every change to the stream",
        "adaptors/transporter_adaptors/postgres_cdc/handover.py",
        "            return copy.is_repeated\n",
        "            return False\n",
        "tests/integration/test_cdc_schedules.py",
        ("test_a_copy_over_rows_that_are_logged_drops_no_change",),
    ),
    Mend(
        "few chunks are in a position",
        "adaptors/transporter_adaptors/postgres_cdc/reader.py",
        "        if not self._handover.has_room:\n",
        "        if False:\n",
        "tests/integration/test_cdc_schedules.py",
        ("test_the_copy_waits_for_a_stream_that_is_behind",),
    ),
    Mend(
        "a TRUNCATE takes what a chunk has seen",
        "adaptors/transporter_adaptors/postgres_cdc/changes.py",
        "            handover.truncate(oid, begin.xid)\n",
        "",
        "tests/integration/test_cdc_schedules.py",
        ("test_rows_that_a_chunk_has_seen_behind_a_truncate_are_copied_again",),
    ),
    Mend(
        "rows of one LSN are counted",
        "adaptors/transporter_adaptors/postgres_cdc/position.py",
        " or self._seen >= self._inside.passed:",
        ":",
        "tests/integration/test_cdc_schedules.py",
        ("test_rows_of_one_lsn_go_on_where_they_were_cut[3]",),
    ),
    Mend(
        "what is left of a batch keeps its bounds",
        "adaptors/transporter_adaptors/postgres_cdc/reader.py",
        "if inside is None and not self._pending:",
        "if inside is None:",
        "tests/integration/test_cdc_schedules.py",
        ("test_what_is_left_of_a_batch_is_compared_with_the_bounds_of_its_time",),
    ),
    Mend(
        "the boundary is a whole key",
        "adaptors/transporter_adaptors/postgres_cdc/tables.py",
        "format_type(a.atttypid, -1)",
        "format_type(a.atttypid, NULL)",
        "tests/integration/test_cdc_schedules.py",
        ("test_keys_of_a_type_with_a_length_are_copied_once[char(9)-'k' || n]",),
    ),
    Mend(
        "a boundary of another order stops the reader",
        "adaptors/transporter_adaptors/postgres_cdc/chunks.py",
        "if not changed or not has_bounds:",
        "if True:",
        "tests/integration/test_cdc_schedules.py",
        ("test_a_key_that_changes_in_the_middle_of_the_copy_stops_the_reader",),
    ),
    Mend(
        "a renamed key goes on",
        "adaptors/transporter_adaptors/postgres_cdc/schema_log.py",
        "key=follow_renames(table.key, table.columns, columns),",
        "key=table.key,",
        "tests/integration/test_cdc_schedules.py",
        ("test_a_renamed_key_goes_on",),
    ),
    Mend(
        "what is published is durable",
        "adaptors/transporter_adaptors/postgres_cdc/session.py",
        '    "synchronous_commit": "on",\n',
        "",
        "tests/integration/test_cdc_schedules.py",
        ("test_what_is_published_outlives_a_crash_of_a_server_that_commits_later",),
    ),
)


@pytest.fixture(scope="module")
def green(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Check that all of the tests pass in a copy without an edit."""
    assert_green(tmp_path_factory.mktemp("as-it-is"), MENDS, LONG, PATIENCE)


@pytest.mark.timeout(PATIENCE)
@pytest.mark.usefixtures("green")
@pytest.mark.parametrize("mend", MENDS, ids=lambda mend: mend.name)
def test_without_a_mend_its_tests_fail(mend: Mend, tmp_path: Path) -> None:
    """Each test of a row fails, as a test does, when its rule is removed."""
    assert mend.fits()
    mend.control(tmp_path, SHORT)
