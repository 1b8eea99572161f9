"""Tests of Spark's log, which stays bounded while it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.spark.log_file import last_error, rotate

if TYPE_CHECKING:
    from pathlib import Path


def test_a_long_log_is_cut_and_its_end_is_kept(tmp_path: Path) -> None:
    """A writer that holds the file open continues at its beginning, and both parts are bounded."""
    log = tmp_path / "spark.log"
    with log.open("ab", buffering=0) as writer:
        for turn in range(3):
            writer.write(b"old%d" % turn + b"x" * 100 + b"newest%d" % turn)
            rotate(log, 50)
            assert log.read_bytes() == b""
            kept = (tmp_path / "spark.log.1").read_bytes()
            assert len(kept) == 50
            assert kept.endswith(b"xnewest%d" % turn)
        writer.write(b"next")
        rotate(log, 50)
    assert log.read_bytes() == b"next"
    assert (tmp_path / "spark.log.1").stat().st_mode & 0o077 == 0


def test_a_log_is_cut_even_where_nothing_of_it_can_be_kept(tmp_path: Path) -> None:
    """A log is truncated even if no copy can be written, and a missing log is ignored."""
    log = tmp_path / "spark.log"
    (tmp_path / "spark.log.1").mkdir()
    log.write_bytes(b"x" * 100)
    rotate(log, 50)
    assert log.read_bytes() == b""
    rotate(tmp_path / "gone.log", 50)


def test_the_last_error_of_spark_is_found(tmp_path: Path) -> None:
    """Warnings, traces and output of workers are skipped, and a missing log has no error."""
    log = tmp_path / "spark.log"
    assert last_error(log) == ""
    log.write_text(
        "x" * 100_000 + "\n26/11/23 09:49:47 ERROR Backend: no\n"
        "26/11/23 09:49:48 ERROR StandaloneSchedulerBackend: Master removed our application\n"
        "26/11/23 09:49:48 ERROR Utils: Uncaught exception in thread stop-spark-context\n"
        "\tat org.apache.spark\nERROR of a worker's\n26/11/23 09:49:49 WARN X: y\n"
    )
    assert last_error(log) == "Master removed our application"
    log.write_text("26/11/23 09:49:48 ERROR Utils: first\n26/11/23 09:49:48 ERROR Utils: last\n")
    assert last_error(log) == "last"


def test_a_spark_that_is_not_let_in_says_what_to_look_at(tmp_path: Path) -> None:
    """A refused connection adds the settings to check to Spark's error about the masters."""
    log = tmp_path / "spark.log"
    log.write_text(
        "26/11/23 22:58:32 ERROR TransportClientFactory: Exception while bootstrapping client\n"
        "java.lang.RuntimeException: java.lang.IllegalArgumentException: Authentication failed.\n"
        "26/11/23 22:58:52 ERROR StandaloneSchedulerBackend: All masters are unresponsive!\n"
    )
    said = last_error(log)
    assert said.startswith("All masters are unresponsive!; ")
    assert "the same spark.authenticate.secret" in said
