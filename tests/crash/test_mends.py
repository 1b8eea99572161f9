"""Mutation controls for mends: with one rule reverted, a fast test fails."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from mend_tools import Mend, assert_green
from power.test_full_disk_kills import CONTROLS
from soak.test_service_mends import MENDS as SERVICE_MENDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SAMPLE = 1
"""Rows that an ordinary run takes, each with the current tests."""
LONG = 60
"""Seconds for a test that is to pass. The slowest takes three."""
SHORT = 20
"""Seconds after which a test that is to fail is ended: without its rule some wait for ever."""


MENDS = (
    # A sink's stored offset counts only when this log's own history proves it.
    Mend(
        "foreign stored offset",
        "engine/routing/session.py",
        "if each.offset > self._log.durable or not self._is_proved(each):",
        "if each.offset > self._log.durable:",
        "engine/routing/test_stored_offset.py",
        (
            "test_an_unknown_run_is_refused_and_settles_nothing",
            "test_a_replay_is_not_moved_by_another_history",
        ),
    ),
    Mend(
        "stored offset in a worker",
        "worker/writers.py",
        "if stored is None or not spec.runs.has_offset(\n"
        "        stored.run, stored.epoch, stored.offset, max(handed, spec.handed)\n"
        "    ):",
        "if stored is None:",
        "engine/routing/test_stored_offset.py",
        ("test_a_worker_passes_over_nothing_that_is_not_proved",),
    ),
    Mend(
        "nothing is appended behind a seal",
        "log/commit_log.py",
        "if self._active.is_sealed:",
        "if False:",
        "log/test_commit_log_close.py",
        ("test_a_failed_roll_is_repeated_whatever_the_settings_are_by_then[open]",),
    ),
    Mend(
        "room for the next open's snapshot",
        "offsets/offset_log.py",
        "if 0 < self._spare_bytes < wanted:",
        "if False:",
        "offsets/test_no_room.py",
        ("test_a_route_of_many_namespaces_opens_on_a_full_disk[at an open]",),
    ),
    Mend(
        "a forgotten route stays forgotten",
        "engine/maintenance/retention_holds.py",
        "if not is_declared(self._log.directory, route):",
        "if False:",
        "engine/maintenance/test_log_budget.py",
        ("test_a_route_that_was_forgotten_meanwhile_is_not_released",),
    ),
    Mend(
        "a run ends where the next begins",
        "log/runs.py",
        "place + 1 == len(self.history) or offset < self.history[place + 1].first",
        "True",
        "engine/routing/test_stored_offset.py",
        ("test_an_earlier_run_proves_only_what_it_had",),
    ),
    Mend(
        "the epoch of a stored offset without a run",
        "log/runs.py",
        "(epoch == self.history[-1].epoch and offset <= last_handed_out)",
        "offset <= last_handed_out",
        "log/test_runs.py",
        ("test_without_a_run_what_this_run_has_handed_out_counts",),
    ),
    Mend(
        "the stored offset of a forgotten route",
        "engine/routing/session.py",
        "return not is_from_forgotten(stored, self._log.runs, state.declared)",
        "return True",
        "engine/routing/test_stored_offset.py",
        ("test_a_replay_is_not_moved_by_a_forgotten_route",),
    ),
    Mend(
        "a replay without gaps",
        "engine/routing/failure_policy.py",
        "if self._offsets.state.replay is not None and self._offsets.state.next_offset() < offset:",
        "if False:",
        "engine/routing/test_failure_policy.py",
        ("test_a_replay_passes_nothing_that_another_shard_has_yet_to_deliver",),
    ),
    # Few segments are open, and none that was removed.
    Mend(
        "bounded descriptors",
        "log/open_segments.py",
        "while len(self._open) > MOST:",
        "while False:",
        "log/test_open_segments.py",
        ("test_readers_at_different_places_share_few_descriptors",),
    ),
    Mend(
        "shared descriptors",
        "log/open_segments.py",
        "return _SHARED if type(files) is RealFileSystem else OpenSegments(files)",
        "return OpenSegments(files)",
        "log/test_open_segments.py",
        ("test_readers_at_different_places_share_few_descriptors",),
    ),
    Mend(
        "removed segments are closed",
        "log/retention.py",
        "    drop_open_segment(segment.path)\n",
        "",
        "log/test_open_segments.py",
        ("test_what_this_process_removes_or_replaces_is_closed_at_once[removed]",),
    ),
    Mend(
        "replaced segments are closed",
        "log/segment_rewriter.py",
        "        drop_open_segment(self._path)\n",
        "",
        "log/test_open_segments.py",
        ("test_what_this_process_removes_or_replaces_is_closed_at_once[replaced]",),
    ),
    Mend(
        "a sweep closes what others removed",
        "log/open_segments.py",
        "if not segment.is_in_place:",
        "if False:",
        "log/test_open_segments.py",
        ("test_a_sweep_closes_what_was_removed_or_replaced",),
    ),
    Mend(
        "a full table is back-pressure",
        "log/filesystem.py",
        "BACK_PRESSURE: Final = (*NO_SPACE, *FULL_TABLE)",
        "BACK_PRESSURE: Final = NO_SPACE",
        "log/test_commit_log_close.py",
        ("test_without_descriptors_a_roll_is_back_pressure",),
    ),
    Mend(
        "the descriptor limit is raised",
        "process_limits.py",
        "if soft != resource.RLIM_INFINITY and soft < wanted:",
        "if False:",
        "engine/test_engine_log.py",
        ("test_an_engine_may_open_as_many_files_as_the_system_allows",),
    ),
    # Making room waits for nothing that is paced.
    Mend(
        "compaction in its own thread",
        "engine/maintenance/log_budget.py",
        "self._log.roll_if_old()\n",
        "self._log.roll_if_old()\n        self.compactor.keep(now)\n",
        "engine/maintenance/test_log_budget.py",
        ("test_room_is_made_while_a_compaction_runs",),
    ),
    Mend(
        "no gate around paced work",
        "log/compaction.py",
        "with self._open(sealed) as segment:\n                worthwhile = target",
        "with self.gate, self._open(sealed) as segment:\n                worthwhile = target",
        "log/test_compaction.py",
        ("test_a_copy_leaves_the_gate_to_others",),
    ),
    Mend(
        "the hold at a compaction's switch",
        "log/compaction.py",
        "            if self._is_held(sealed):\n                return False\n",
        "",
        "log/test_compaction.py",
        ("test_a_replay_that_begins_during_the_copy_loses_nothing",),
    ),
    Mend(
        "a replay looks again at what was compacted since it was planned",
        "control/operator_actions.py",
        "        if log.gate.rewrite_count != rewritten:\n"
        "            plan = _plan(log, offsets, request)\n",
        "",
        "control/test_stopped_log.py",
        ("test_a_compaction_between_plan_and_begin_is_seen",),
    ),
    Mend(
        "offsets that recovery cut stay a hole",
        "log/segment_rewriter.py",
        "            self._hole_size += frame.first - self._passed_through - 1\n",
        "",
        "log/test_dropped.py",
        ("test_offsets_that_recovery_cut_are_not_taken_for_dropped",),
    ),
    # Of a stuck log the right route is released, and its source gets no acknowledgement.
    Mend(
        "a route whose worker Spark has yet to start is not stuck",
        "engine/routing/route.py",
        "self._condition.awaits_spark = True",
        "self._condition.awaits_spark = False",
        "engine/maintenance/test_log_budget.py",
        ("test_a_route_that_waits_for_spark_loses_nothing",),
    ),
    Mend(
        "the order of holds",
        "offsets/retention_holds.py",
        "(each.through, _ORDER.index(each.kind), each.name)",
        "(each.through, each.name)",
        "log/test_retention_gate.py",
        ("test_the_order_of_holds_does_not_depend_on_names",),
    ),
    Mend(
        "released entries are not acknowledged",
        "engine/reading/acknowledgement.py",
        "left = _exclude_released(rows, part, released)",
        "left = rows",
        "engine/reading/test_acknowledgement.py",
        ("test_what_was_released_is_given_up_and_still_counts",),
    ),
    Mend(
        "released entries that were parked are not acknowledged",
        "engine/reading/acknowledgement.py",
        "if any(first <= offset <= last for first, last, _ in released):",
        "if False:",
        "engine/reading/test_acknowledgement.py",
        ("test_what_was_released_from_one_route_and_parked_by_another_is_given_up",),
    ),
    Mend(
        "what is released is asked of the routes",
        "engine/reading/delivery_progress.py",
        "return (*full, *ranges)",
        "return ()",
        "engine/test_delivered.py",
        ("test_a_source_is_never_told_of_what_was_released[a-route]",),
    ),
    Mend(
        "a release is recorded as one",
        "offsets/retention_holds.py",
        "offsets.settle(Range(state.next_unsettled(), through, RELEASED), durable)",
        "offsets.settle(Range(state.next_unsettled(), through), durable)",
        "engine/maintenance/test_log_budget.py",
        ("test_a_release_is_recorded_where_it_happens",),
    ),
    Mend(
        "nothing of a source in order is released",
        "engine/reading/feed.py",
        "return None if self._acknowledgement.redelivers_released else self.hold()",
        "return None",
        "engine/test_delivered.py",
        ("test_what_a_source_takes_in_order_only_is_not_released",),
    ),
    Mend(
        "what was released is not recognised at a restart",
        "engine/reading/reader_resume.py",
        "return _DeliverySnapshot(last, through, self._deliveries.parked, "
        "self._deliveries.released)",
        "return _DeliverySnapshot(last, through, self._deliveries.parked)",
        "engine/test_delivered.py",
        ("test_what_was_released_and_is_still_in_the_log_is_not_recognised",),
    ),
    Mend(
        "a parked entry that the log lacks is undelivered as well",
        "engine/reading/reader_resume.py",
        "if parked and parked[0] <= found.frame.last:",
        "if False:",
        "engine/routing/test_superseding.py",
        ("test_a_parked_entry_that_compaction_has_removed_comes_in_its_place",),
    ),
    Mend(
        "a stop releases nothing that comes again",
        "engine/reading/feed.py",
        "first = self._acknowledgement.first_unacknowledged\n",
        "first = None if self.ended else self._acknowledgement.first_unacknowledged\n",
        "engine/reading/test_feed.py",
        ("test_a_stop_releases_nothing_that_the_source_redelivers",),
    ),
    # Requests come before any new slice. The loop of a route looks for entries to supersede as
    # well. Without that it only turns in haste, so the last look is the one that counts.
    Mend(
        "errands before a slice",
        "engine/routing/session.py",
        "pending = self._context.mailbox or self._offsets.state.readers_to_supersede()",
        "pending = self._offsets.state.readers_to_supersede()",
        "engine/routing/test_route.py",
        ("test_an_errand_sends_nothing_out_that_lingers",),
    ),
    Mend(
        "superseding before a slice",
        "engine/routing/session.py",
        "pending = self._context.mailbox or self._offsets.state.readers_to_supersede()",
        "pending = self._context.mailbox",
        "engine/routing/test_route.py",
        ("test_what_is_changed_after_a_slice_was_cut_holds_for_it[begin_superseding-expected4]",),
    ),
    Mend(
        "nothing pending before a slice",
        "engine/routing/session.py",
        "if pending or self._context.stopping.is_set():",
        "if self._context.stopping.is_set():",
        "engine/routing/test_route.py",
        (
            "test_what_is_changed_after_a_slice_was_cut_holds_for_it[supersede-expected3]",
            "test_what_lingers_when_its_source_takes_it_back_is_not_delivered",
        ),
    ),
    Mend(
        "superseding is recorded first",
        "engine/routing/route.py",
        "        self._offsets.begin_superseding(reader, through)\n",
        "",
        "engine/routing/test_route.py",
        ("test_what_is_changed_after_a_slice_was_cut_holds_for_it[supersede-expected3]",),
    ),
    Mend(
        "superseding passes what comes again",
        "engine/routing/superseding.py",
        "offsets.supersede(reader, through, parts, through)",
        "offsets.supersede(reader, through, [], through)",
        "engine/routing/test_superseding.py",
        ("test_what_was_not_passed_before_a_crash_is_passed_by_the_next_open",),
    ),
    Mend(
        "parked entries leave room",
        "engine/reading/feed.py",
        "return self._acknowledgement.waiting_count >= self._condition.config.max_in_flight",
        "return self._acknowledgement.count >= self._condition.config.max_in_flight",
        "engine/test_delivered.py",
        ("test_parked_entries_leave_room_for_others",),
    ),
    Mend(
        "no progress is followed by a wait",
        "engine/routing/failure_policy.py",
        "if self._vain_attempts > _MOST_IN_VAIN:",
        "if False:",
        "engine/routing/test_failure_policy.py",
        ("test_what_makes_no_progress_is_never_repeated_for_ever_without_a_wait",),
    ),
    Mend(
        "an offset outside its slice names nothing",
        "engine/routing/failure_policy.py",
        "if named is None or slice_.first <= named <= slice_.last:",
        "if True:",
        "engine/routing/test_failure_policy.py",
        ("test_an_entry_that_is_named_wrongly_while_it_is_alone_has_its_attempts",),
    ),
    Mend(
        "a damaged parked file halts one route",
        "engine/routing/parking.py",
        "lenient=True",
        "lenient=False",
        "engine/test_failures.py",
        ("test_a_damaged_parked_file_halts_its_route_only[skip]",),
    ),
    Mend(
        "an engine that cannot be made gives its lock back",
        "engine/engine.py",
        "            opened.callback(self._log.close)\n",
        "",
        "engine/test_engine.py",
        ("test_an_engine_that_cannot_be_made_gives_the_log_back",),
    ),
    Mend(
        "a replay keeps the reasons of parked entries",
        "engine/routing/parking.py",
        "if first < offset and offset not in self.store:",
        "if first < offset:",
        "engine/test_failures.py",
        ("test_a_replay_leaves_what_is_parked_as_it_is[key]",),
    ),
    Mend(
        "retries keep the order of a key",
        "engine/routing/parking.py",
        "return self.store.first_of_same_key(offset)",
        "return offset",
        "engine/test_failures.py",
        ("test_a_retry_never_overtakes_an_earlier_parked_entry_of_its_key",),
    ),
    Mend(
        "those behind a delivered entry follow it",
        "engine/routing/parking.py",
        "            if followers:",
        "            if not followers:",
        "engine/test_failures.py",
        ("test_what_is_parked_behind_a_delivered_entry_follows_it",),
    ),
    Mend(
        "a skip is recorded before its copies go",
        "offsets/parked.py",
        "        log.begin_skip(found,",
        "        store.remove_all(found)\n        log.begin_skip(found,",
        "engine/routing/test_parking.py",
        ("test_a_kill_at_a_skip_delivers_nothing_that_was_skipped[OffsetLog-begin_skip-True]",),
    ),
    Mend(
        "a paused leader's entries are superseded",
        "engine/reading/feed.py",
        "        if self._shared:\n            # Invariant 10: the next leader",
        "        if False:\n            # Invariant 10: the next leader",
        "engine/test_delivered.py",
        (
            "test_a_paused_leader_leaves_what_is_not_delivered_to_the_next",
            "test_an_engine_that_starts_with_a_paused_leader_waits_for_no_decision",
        ),
    ),
    Mend(
        "only exact names are segments",
        "log/segment.py",
        "return base if base <= _LARGEST and name == segment_name(base) else None",
        "return base",
        "log/test_stray_files.py",
        ("test_only_exact_names_are_segments",),
    ),
    Mend(
        "a copy under another name is refused",
        "log/segment.py",
        "                self._check_name()\n",
        "",
        "log/test_stray_files.py",
        ("test_a_copy_under_another_segments_name_is_refused",),
    ),
    Mend(
        "a reader does not look for ever",
        "log/reader.py",
        "if not any(self._list_segments() for _ in range(MAX_LISTINGS)):",
        "while not self._list_segments():\n            pass\n        if False:",
        "log/test_stray_files.py",
        ("test_segments_that_vanish_at_once_are_an_error",),
    ),
    Mend(
        "a look ends with whoever waits for it",
        "control/running_engine.py",
        "if self._engine.stopping or is_abandoned():",
        "if False:",
        "control/test_running_engine.py",
        ("test_a_long_look_holds_nobody_and_ends_with_whoever_waits_for_it[client]",),
    ),
    Mend(
        "a look holds no lock",
        "control/running_engine.py",
        "                done = self._preview_replay(request, is_abandoned)\n",
        "                with self._route_locks[request.route]:\n"
        "                    done = self._preview_replay(request, is_abandoned)\n",
        "control/test_running_engine.py",
        ("test_a_long_look_holds_nobody_and_ends_with_whoever_waits_for_it[client]",),
    ),
    Mend(
        "room is looked at before a compaction",
        "log/compaction.py",
        "        refuse_without_room(self.files, directory, "
        "max((each.size for each in targets), default=0))\n",
        "",
        "log/test_compaction.py",
        ("test_without_room_for_a_copy_nothing_is_read",),
    ),
    Mend(
        "room is looked at during a copy",
        "log/segment_rewriter.py",
        "            refuse_without_room(self._files, self._path.parent, 0)\n",
        "",
        "log/test_compaction.py",
        ("test_a_disk_that_fills_during_the_copy_ends_it",),
    ),
    Mend(
        "a compaction without room is tried later and later",
        "engine/maintenance/compactor.py",
        "self._not_before = time.monotonic() + self._delay",
        "self._not_before = 0.0",
        "engine/maintenance/test_log_budget.py",
        ("test_compaction_waits_for_room_and_says_so_once",),
    ),
    Mend(
        "age by wall time",
        "log/wall_times.py",
        "if segment.newest <= self._now + _AHEAD:",
        "if True:",
        "log/test_log_time.py",
        (
            "test_retention_by_age_survives_a_clock_that_was_wrong",
            "test_compaction_survives_a_clock_that_was_wrong",
        ),
    ),
    Mend(
        "log time that is ahead is told",
        "engine/maintenance/committer.py",
        "ahead > AHEAD",
        "False",
        "log/test_log_time.py",
        ("test_log_time_that_is_ahead_is_told_at_the_start",),
    ),
    Mend(
        "a closed log takes nothing",
        "log/commit_log.py",
        'raise LogPoisoned(f"{self.directory}: the log is closed")',
        "pass",
        "log/test_commit_log_close.py",
        ("test_a_closed_log_writes_nothing_more",),
    ),
    Mend(
        "close waits for a sync",
        "log/commit_log.py",
        "            while self._group.syncing:\n                self._condition.wait(0.1)\n",
        "",
        "log/test_commit_log_close.py",
        ("test_close_waits_for_an_append_that_syncs",),
    ),
    Mend(
        "what no sync covers is bounded at rolls",
        "log/commit_log.py",
        "        while (full := self._is_full()) or not self._group.has_room(\n"
        "            size, self._reserve.covered_bytes\n"
        "        ):\n",
        "        while not self._group.has_room(size, self._reserve.covered_bytes):\n"
        "            if self._group.syncing:\n"
        "                self._condition.wait()\n"
        "            else:\n"
        "                self._sync_now()\n"
        "        while full := self._is_full():\n",
        "log/test_commit_log_close.py",
        ("test_what_no_sync_covers_is_bounded_at_rolls",),
    ),
    Mend(
        "the reserve grows before a larger group is written",
        "log/commit_log.py",
        "            self._reserve.grow(group)\n",
        "            pass\n",
        "log/test_recovery.py",
        ("test_the_reserve_covers_two_of_the_largest_groups_that_were_written",),
    ),
    Mend(
        "a group that the reserve cannot cover waits",
        "log/commit_log.py",
        "if self._reserve.covered_bytes < min(size, GROUP_BYTES):",
        "if False:",
        "log/test_recovery.py",
        ("test_a_disk_without_room_for_a_larger_reserve_takes_small_appends_only",),
    ),
    Mend(
        "a start makes its files while it may use the reserve",
        "log/opening.py",
        "            make_index(files, path)\n",
        "            pass\n",
        "log/test_recovery.py",
        ("test_a_start_on_a_full_disk_has_room_for_every_file_that_it_makes",),
    ),
    Mend(
        "a renamed route delivers nothing again",
        "pipeline/route_changes.py",
        "if route.name not in declared and not route.has_start:",
        "if False:",
        "engine/test_renamed_pipeline.py",
        ("test_a_renamed_route_delivers_nothing_again",),
    ),
    Mend(
        "a route keeps its rate",
        "engine/routing/session.py",
        "            self._context.rate_limit.spend(meter.delivered - before)\n",
        "            pass\n",
        "engine/routing/test_rate_limit.py",
        ("test_a_route_keeps_its_rate_says_so_and_holds_nobody_back",),
    ),
    Mend(
        "a lost lock ends the log",
        "log/commit_log.py",
        "if self._lock is not None and not self._lock.is_held():",
        "if False:",
        "log/test_commit_log_close.py",
        ("test_an_engine_whose_lock_was_removed_acks_nothing_more",),
    ),
    Mend(
        "a record is bounded when it is written",
        "offsets/record.py",
        "if len(body) > MAX_RECORD:",
        "if False:",
        "offsets/test_no_room.py",
        ("test_a_record_that_could_not_be_read_again_is_refused",),
    ),
    Mend(
        "a log of one segment takes one more",
        "log/commit_log.py",
        "self.over_budget = bool(self._sealed_bytes) and used + size > most",
        "self.over_budget = used + size > most",
        "log/test_retention.py",
        ("test_a_log_of_one_segment_always_takes_one_more",),
    ),
    # Input from other parties is accepted only as far as it makes sense.
    Mend(
        "a forged state of a route",
        "offsets/offset_log.py",
        "        state.validate()\n",
        "",
        "offsets/test_foreign_records.py",
        ("test_a_forged_offset_log_is_corrupt_to_whoever_reads_it[a text for a watermark]",),
    ),
    Mend(
        "a forged event of a route",
        "offsets/offset_log.py",
        "except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:",
        "except ZeroDivisionError as error:",
        "offsets/test_foreign_records.py",
        (
            "test_a_forged_offset_log_is_corrupt_to_whoever_reads_it[retries without offsets]",
            "test_a_bottomless_event_is_corrupt",
        ),
    ),
    Mend(
        "a forged maintenance record",
        "log/maintenance.py",
        "        _check_types(found)\n",
        "",
        "log/test_foreign_records.py",
        ("test_a_forged_maintenance_record_is_corrupt[{'readers': {'shop': '4'}}]",),
    ),
    Mend(
        "entries of a stranger are validated",
        "log/format.py",
        "        entries.validate(full=True)\n",
        "",
        "log/test_hostile.py",
        ("test_entries_of_a_stranger_are_refused[data of a negative length]",),
    ),
    Mend(
        "what Arrow compressed is bounded",
        "log/format.py",
        "if (claimed := claimed_bytes(message)) > MAX_PAYLOAD:",
        "if (claimed := 0):",
        "log/test_hostile.py",
        ("test_entries_of_a_stranger_are_refused[a buffer of a GiB]",),
    ),
    # No other user reads, writes or stops anything.
    Mend(
        "a TLS connection that broke is no end",
        "protocol/channel.py",
        "            _await_record(self._tls)\n"
        "        self._fill(memoryview(head), begun=self._tls is not None)",
        "            pass\n        self._fill(memoryview(head), begun=False)",
        "protocol/test_channel.py",
        ("test_a_reset_over_tcp_is_no_end[tls]",),
    ),
    Mend(
        "a cluster without a secret is refused",
        "pipeline/spark_protection.py",
        "if not config.get(SECRET) and not _OWN_SECRET.match(master):",
        "if False:",
        "pipeline/test_spark_protection.py",
        ("test_what_is_not_protected_is_refused",),
    ),
    Mend(
        "a secret in base64",
        "pipeline/secrets.py",
        '        yield from _base64_forms(each.encode(errors="surrogateescape"))\n',
        "",
        "pipeline/test_secrets.py",
        ("test_a_secret_is_found_however_it_is_written",),
    ),
    Mend(
        "a key of many lines",
        "pipeline/secrets.py",
        "if len(lines := secret.split()) > 1:",
        "if len(lines := secret.split()) > 10**6:",
        "pipeline/test_secrets.py",
        ("test_a_key_of_many_lines_is_found_on_one",),
    ),
    Mend(
        "idle callers of the endpoint make way",
        "observe/http_server.py",
        "while len(self._clients) >= CLIENTS:",
        "while False:",
        "observe/test_http_server.py",
        ("test_who_only_holds_a_place_loses_it",),
    ),
    Mend(
        "a request to the endpoint has its time",
        "observe/http_server.py",
        "latest = time.monotonic() - PATIENCE",
        "latest = time.monotonic() - 1e9",
        "observe/test_http_server.py",
        ("test_a_whole_request_has_its_time",),
    ),
    Mend(
        "an export has a folder of its own",
        "log/export.py",
        'private = path.with_name(f".{path.name}.{token_hex(16)}")\n'
        "    whole = private / path.name",
        'private = path.with_name(f".{path.name}.{token_hex(16)}")\n    whole = path',
        "log/test_export.py",
        ("test_an_export_writes_into_nothing_that_others_have_made",),
    ),
    Mend(
        "files of sinks are closed to others",
        "adaptors/transporter_adaptors/rights.py",
        "    os.fchmod(descriptor, mode)\n",
        "    os.fchmod(descriptor, 0o644)\n",
        "adaptors/test_rights.py",
        ("test_what_is_made_has_the_rights_of_the_setting",),
    ),
    Mend(
        "the file reader follows no link",
        "adaptors/transporter_adaptors/file/reader.py",
        "flags |= 0 if links else os.O_NOFOLLOW",
        "flags |= 0",
        "adaptors/file/test_file_reader.py",
        ("test_what_takes_a_files_place_after_the_look_is_not_opened",),
    ),
    Mend(
        "a killed reader's slot in LMDB",
        "adaptors/transporter_adaptors/lmdb/writer.py",
        "        environment.reader_check()\n        try:",
        "        try:",
        "adaptors/lmdb/test_lmdb_writer.py",
        ("test_a_killed_reader_does_not_make_the_file_grow",),
    ),
    # A start waits for a party that is away, and a query waits for no one.
    Mend(
        "a source that is away at the start",
        "engine/reading/feed.py",
        "if self._fail_fast and self._is_starting:",
        "if self._is_starting:",
        "engine/reading/test_feed.py",
        ("test_a_source_that_is_away_at_the_very_first_open_is_tried_until_it_is_there",),
    ),
    Mend(
        "a look outlives its engine",
        "control/client.py",
        "if not isinstance(request, ReadRequest):",
        "if True:",
        "control/test_server.py",
        ("test_a_look_outlives_an_engine_that_is_killed_at_that_moment",),
    ),
    # Lines about skipped entries.
    Mend(
        "the line of a skipped entry is durable when it is reported",
        "offsets/given_up.py",
        "            file.pwrite(data, end)\n            sync(file)\n",
        "            file.pwrite(data, end)\n",
        "offsets/test_given_up.py",
        ("test_a_line_is_durable_when_it_is_reported",),
    ),
    Mend(
        "the name of a file with lines is durable",
        "offsets/given_up.py",
        "            if not self._named:\n",
        "            if False:\n",
        "offsets/test_given_up.py",
        ("test_a_line_is_durable_when_it_is_reported",),
    ),
    Mend(
        "the line of a skipped entry comes before the watermark",
        "engine/routing/failure_policy.py",
        "# The line is durable before the watermark may pass, and a crash may repeat it.",
        'self._offsets.settle(Range(offset, offset, "skipped"), self._log.durable)',
        "engine/test_given_up_lines.py",
        ("test_a_line_is_there_before_the_watermark_passes",),
    ),
    Mend(
        "kept events have no secrets",
        "engine/engine.py",
        "_redact_events(lambda: self._secrets, self.events)",
        "self.events",
        "cli/test_events_command.py",
        ("test_secrets_are_redacted_in_kept_events",),
    ),
    Mend(
        "a dry run leaves running modules alone",
        "pipeline/reload_changes.py",
        "        with fresh_modules(running.file.parent):\n            return",
        "        forget_modules(running.file.parent)\n        if True:\n            return",
        "control/test_reload_preview.py",
        ("test_running_modules_stay_as_they_are",),
    ),
    # Duties of adaptors to a source or a sink. Rules that need a server are in test_service_mends.
    Mend(
        "a commit costs the same however many batches are open",
        "adaptors/transporter_adaptors/kafka/reader.py",
        "while position in self._open_batches:",
        "while position in list(self._open_batches):",
        "adaptors/kafka/test_kafka_reader.py",
        ("test_commits_of_many_open_batches_cost_the_same_each[True]",),
    ),
    Mend(
        "a row without a time is told of",
        "adaptors/transporter_adaptors/postgres/rows.py",
        '        return f"{column} is NULL"\n',
        "        return None\n",
        "adaptors/postgres/test_rows.py",
        ("test_a_bad_row_is_marked_and_keeps_its_columns[change12-create_time is NULL]",),
    ),
    Mend(
        "a row that is no text is told of",
        "adaptors/transporter_adaptors/postgres/rows.py",
        '        return "the key, the value or a header value is not valid UTF-8"\n',
        "        return None\n",
        "adaptors/postgres/test_rows.py",
        ("test_a_key_or_a_value_that_is_not_utf8_is_a_flaw",),
    ),
    Mend(
        "a gap that old transactions may fill waits for their end",
        "adaptors/transporter_adaptors/postgres/gaps.py",
        "kept = replace(gap, held=True) if running",
        "kept = replace(gap, held=False) if running",
        "adaptors/postgres/test_gaps.py",
        ("test_a_gap_that_old_transactions_may_fill_waits_for_their_end_alone",),
    ),
    Mend(
        "a fatal error whose reason the client has lost is fatal",
        "kafka/errors.py",
        "isinstance(failure, SystemError) and _LOST in str(failure)",
        "False",
        "kafka/test_kafka_errors.py",
        ("test_a_fatal_error_without_its_reason_is_still_fatal",),
    ),
    Mend(
        "an elector replaces a producer that failed for good",
        "election/kafka.py",
        "ended, self.producer = [self.producer], self._make_producer()",
        "ended = [self.producer]",
        "election/test_kafka_election.py",
        ("test_a_producer_that_failed_for_good_is_replaced",),
    ),
    Mend(
        "a client that can never send again is told",
        "queue/ordered_sender.py",
        "            self._fatal_error = found\n",
        "            pass\n",
        "queue/test_ordered_sender.py",
        ("test_a_client_that_can_never_send_again_is_told",),
    ),
    Mend(
        "a pause that a sink asks for outlives its worker",
        "engine/routing/condition.py",
        "self.not_before = time.monotonic() + decision.wait\n"
        "                self.retry_later(decision.problem, least=decision.wait)",
        "self.retry_later(decision.problem)",
        "engine/test_sink_pauses.py",
        ("test_a_retry_after_outlives_its_worker",),
    ),
    Mend(
        "what is too large stops no reader",
        "engine/reading/batch_appender.py",
        "            return list(split_for_append(_create_stand_in(messages)))\n",
        "            raise\n",
        "engine/reading/test_oversized.py",
        ("test_a_large_key_is_left_out",),
    ),
    # An engine that has lost its lock leaves alone the parts that another one may have.
    Mend(
        "offset logs of another engine",
        "offsets/offset_log.py",
        "        self._guard()\n        try:\n            self._append(",
        "        try:\n            self._append(",
        "engine/test_lock_lost.py",
        ("test_offset_logs_stay_as_they_are",),
    ),
    Mend(
        "parked entries of another engine",
        "engine/routing/parking.py",
        ", guard=log.check_lock)",
        ")",
        "engine/test_lock_lost.py",
        # Superseding is refused by the guard of offset logs, too, which come first.
        ("test_parked_entries_stay_as_they_are",),
    ),
    Mend(
        "what routes of another engine need",
        "engine/maintenance/retention_holds.py",
        """        self._log.check_lock()
        feeds = """,
        "        feeds = ",
        "engine/test_lock_lost.py",
        ("test_nothing_is_held_or_compacted_by_what_it_knows",),
    ),
    # Changes of readers and routes while the engine runs.
    Mend(
        "what a new route begins at stays",
        "engine/reload.py",
        "with self._log.gate.register_hold(), self.handover_lock:",
        "with self.handover_lock:",
        "engine/test_reload.py",
        ("test_a_route_is_not_declared_while_entries_are_given_up",),
    ),
    Mend(
        "a hold that changed hands is read anew",
        "engine/reload.py",
        "            self.handovers += 1\n        if offsets.is_new",
        "        if offsets.is_new",
        "engine/test_reload.py",
        ("test_what_holds_the_log_is_what_a_route_has_left_and_not_what_it_had",),
    ),
    Mend(
        "a route that comes is waited for at once",
        "engine/reading/delivery_progress.py",
        """            self.routes = (*self.routes, route)
            for reader in readers:
                self._spare(route, reader, superseded[reader])
""",
        """            for reader in readers:
                self._spare(route, reader, superseded[reader])
            self.routes = (*self.routes, route)
""",
        "engine/test_leaving.py",
        ("test_a_source_is_not_told_without_a_route_that_comes",),
    ),
    Mend(
        "a leader that leaves is superseded",
        "engine/reading/feed.py",
        "        if self._shared and not self._has_superseded:\n",
        "        if False:\n",
        "engine/test_leaving.py",
        ("test_a_leader_that_has_ended_otherwise_or_hangs_leaves_its_entries_to_the_next",),
    ),
    Mend(
        "only a route that has ended is forgotten",
        "engine/maintenance/retention_holds.py",
        "            if route in self._running.offsets:\n                raise",
        "            if False:\n                raise",
        "engine/test_leaving.py",
        ("test_only_a_route_that_has_ended_is_forgotten",),
    ),
    Mend(
        "what a removed reader waits for is spared",
        "engine/maintenance/retention_holds.py",
        "        limits += self._left_holds(feeds)\n",
        "",
        "engine/test_delivered.py",
        ("test_what_a_removed_reader_waits_for_is_released_from_no_route[later-reload]",),
    ),
    Mend(
        "a removed reader is spared for what was logged by then only",
        "engine/maintenance/retention_holds.py",
        "and left.through < left.waits_through",
        "",
        "engine/test_delivered.py",
        ("test_a_removed_reader_without_a_need_holds_nothing",),
    ),
    # Access by other users on the host, and files that operators leave behind.
    Mend(
        "readiness quotes nobody",
        "engine/readiness.py",
        "route.name, state.value, why, route.still, counts)",
        "route.name, state.value, route.problem, route.still, counts)",
        "engine/test_readiness.py",
        ("test_the_report_tells_how_long_and_how_much_but_quotes_nobody",),
    ),
    Mend(
        "what operators change is recorded first",
        "audit.py",
        "        made = self.record(action, by, **details)\n",
        '        made = ""\n',
        "test_audit.py",
        ("test_every_command_is_audited[ack]", "test_nothing_is_changed_before_it_is_audited[ack]"),
    ),
    Mend(
        "idle callers of the door make way",
        "engine/workers/listener.py",
        "            self._disconnect([line])\n            return True\n",
        "            return False\n",
        "engine/workers/test_listener.py",
        ("test_idle_callers_make_way_for_those_who_prove_themselves[tcp]",),
    ),
    Mend(
        "a file is known by its beginning, too",
        "adaptors/transporter_adaptors/file/reader.py",
        "and head_digest(descriptor, known.byte) == known.head",
        "and known.head is not None",
        "adaptors/file/test_file_reader.py",
        ("test_a_file_that_was_overwritten_is_read_from_its_beginning",),
    ),
    Mend(
        "numbers in names of files are numbers",
        "adaptors/transporter_adaptors/file/reader.py",
        "sorted(names, key=natural_key)",
        "sorted(names)",
        "adaptors/file/test_file_reader.py",
        ("test_numbers_in_names_are_numbers",),
    ),
    Mend(
        "a rotated file is read on",
        "adaptors/transporter_adaptors/file/reader.py",
        "        for each in reversed(self._moved_files(found)):\n",
        "        for each in ():\n",
        "adaptors/file/test_file_reader.py",
        ("test_a_rotated_file_is_read_on_after_a_restart",),
    ),
    Mend(
        "a folder without files may be a mount that comes late",
        "adaptors/transporter_adaptors/file/reader.py",
        "        if found:\n            self._report_loss",
        "        if True:\n            self._report_loss",
        "adaptors/file/test_file_reader.py",
        ("test_files_that_come_late_into_their_folder_are_known",),
    ),
    Mend(
        "a commit that was not taken back is not repeated",
        "adaptors/transporter_adaptors/file/writer.py",
        "there = output.offset_after_failure(state, batch.generation)",
        "there = None",
        "adaptors/file/test_file_writer_found.py",
        ("test_a_commit_that_cannot_be_taken_back_is_not_repeated",),
    ),
    Mend(
        "messages of one entry in LMDB",
        "adaptors/transporter_adaptors/lmdb/writer.py",
        'return key + copy.to_bytes(4, "big") if copy else key',
        "return key",
        "adaptors/lmdb/test_lmdb_writer.py",
        ("test_every_message_of_an_entry_is_kept",),
    ),
    # The hand-over from the copy of a table to its stream.
    Mend(
        "the first chunk sees all that ran before",
        "adaptors/transporter_adaptors/postgres_cdc/handover.py",
        "if copy.boundary is None and snapshot.xmin",
        "if False and snapshot.xmin",
        "tests/property/test_cdc_handover.py",
        ("test_each_keys_history_is_exact[0]",),
    ),
    Mend(
        "a number that a crash has taken is not waited for",
        "adaptors/transporter_adaptors/postgres_cdc/handover.py",
        " <= copy.begun < snapshot.xmax:",
        " <= copy.begun:",
        "tests/property/test_cdc_handover.py",
        ("test_a_number_that_a_crash_has_taken_is_not_waited_for",),
    ),
    Mend(
        "a chunk waits for what was passed",
        "adaptors/transporter_adaptors/postgres_cdc/handover.py",
        "        return not self.passed\n",
        "        return True\n",
        "tests/property/test_cdc_handover.py",
        ("test_each_keys_history_is_exact[0]",),
    ),
    Mend(
        "what is beyond the boundary is left to its chunk",
        "adaptors/transporter_adaptors/postgres_cdc/handover.py",
        "            return copy.is_repeated\n",
        "            return True\n",
        "tests/property/test_cdc_handover.py",
        ("test_each_keys_history_is_exact[0]",),
    ),
    Mend(
        "what a chunk has seen is not logged again",
        "adaptors/transporter_adaptors/postgres_cdc/handover.py",
        "        if copy.is_repeated or chunk.end <= commit_lsn:",
        "        if True:",
        "tests/property/test_cdc_handover.py",
        ("test_each_keys_history_is_exact[0]",),
    ),
    Mend(
        "a repeated copy drops nothing",
        "adaptors/transporter_adaptors/postgres_cdc/handover.py",
        "        if copy.is_repeated or chunk.end <= commit_lsn:",
        "        if chunk.end <= commit_lsn:",
        "tests/property/test_cdc_handover.py",
        ("test_a_table_that_is_copied_again_ends_right",),
    ),
    Mend(
        "chunks count until the stream is past them",
        "adaptors/transporter_adaptors/postgres_cdc/handover.py",
        "if chunk.end > lsn)",
        "if chunk.end > lsn + 20)",
        "tests/property/test_cdc_handover.py",
        ("test_each_keys_history_is_exact[0]",),
    ),
    Mend(
        "the copy waits for a stream that is behind",
        "adaptors/transporter_adaptors/postgres_cdc/handover.py",
        "return len(chunks) < MAX_CHUNKS and running",
        "return running",
        "tests/property/test_cdc_handover.py",
        ("test_the_copy_waits_for_a_stream_that_is_behind",),
    ),
    Mend(
        "a table is in sync without chunks",
        "adaptors/transporter_adaptors/postgres_cdc/handover.py",
        "if left.is_complete and not left.chunks:",
        "if left.is_complete:",
        "tests/property/test_cdc_handover.py",
        ("test_each_keys_history_is_exact[0]",),
    ),
    Mend(
        "a TRUNCATE begins the copy again",
        "adaptors/transporter_adaptors/postgres_cdc/handover.py",
        "            self.copies[oid] = copy.restart(copy.begun)\n",
        "",
        "tests/property/test_cdc_handover.py",
        ("test_each_keys_history_is_exact[0]",),
    ),
    Mend(
        "a copy in part stays one",
        "adaptors/transporter_adaptors/postgres_cdc/handover.py",
        "self.run, self.is_repeated, rows=self.rows)",
        "self.run, rows=self.rows)",
        "tests/property/test_cdc_handover.py",
        ("test_a_table_that_is_copied_in_part_ends_right",),
    ),
    Mend(
        "a part of a transaction is logged once",
        "adaptors/transporter_adaptors/postgres_cdc/position.py",
        "        if change_lsn < self._inside.change_lsn:\n            return True\n",
        "",
        "tests/property/test_cdc_handover.py",
        ("test_each_keys_history_is_exact[0]",),
    ),
    Mend(
        "changes of one LSN are counted",
        "adaptors/transporter_adaptors/postgres_cdc/position.py",
        " or self._seen >= self._inside.passed:",
        ":",
        "tests/property/test_cdc_handover.py",
        ("test_each_keys_history_is_exact[0]",),
    ),
)


def wanted(config: pytest.Config) -> Sequence[Mend]:
    """Return every mend when every case is wanted, or else some of them."""
    exhaustive = config.getoption("--exhaustive")
    return MENDS if exhaustive else Random(SAMPLE).sample(MENDS, SAMPLE)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make each wanted mend a case of its own."""
    if "mend" in metafunc.fixturenames:
        metafunc.parametrize("mend", wanted(metafunc.config), ids=lambda mend: mend.name)


@pytest.fixture(scope="module")
def green(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Check that the tests of all wanted mends pass in a copy without an edit."""
    assert_green(tmp_path_factory.mktemp("as-it-is"), wanted(request.config), LONG)


@pytest.mark.parametrize("each", [*MENDS, *SERVICE_MENDS, *CONTROLS], ids=lambda mend: mend.name)
def test_every_edit_fits(each: Mend) -> None:
    """A row whose source has changed is noticed at once, also one of a longer suite."""
    assert each.fits()


@pytest.mark.usefixtures("green")
def test_without_a_mend_its_tests_fail(mend: Mend, tmp_path: Path) -> None:
    """Each test of a row fails, as a test does, once the rule is reverted."""
    mend.control(tmp_path, SHORT)
