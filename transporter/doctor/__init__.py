"""All checks of a host, in their order, each with its subject."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from transporter.doctor import disk, host
from transporter.doctor.pipeline import check_log, check_pipeline_file
from transporter.embed import cache_directory
from transporter.errors import EnvironmentFault
from transporter.sizing import memory_need
from transporter.spark.preflight import probe_spark

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from transporter.adaptor import Finding
    from transporter.pipeline.config import Pipeline
    from transporter.pipeline.yaml_document import Document


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding, with the part of the host that it is about."""

    subject: str
    level: Literal["fine", "warning", "problem"]
    text: str


def examine(
    directory: Path, pipeline: Pipeline | None = None, document: Document | None = None
) -> Iterator[Diagnosis]:
    """Yield the findings about this host, and about *directory* as the place of a log.

    A check may take some seconds. With a *pipeline*, of the source *document*, its own needs
    are checked as well. Nothing that was there is changed.
    """
    since = host.read_clocks()
    for subject, findings in _checks(directory, pipeline, document):
        for each in findings:
            yield Diagnosis(subject, each.level, each.text)
    # The clocks have run for a while by now.
    for each in host.check_clock(since, host.read_clocks()):
        yield Diagnosis("clock", each.level, each.text)


def _checks(
    directory: Path, pipeline: Pipeline | None, document: Document | None
) -> Iterator[tuple[str, Iterable[Finding]]]:
    budget = None if pipeline is None else pipeline.log.max_bytes
    yield "python", host.check_python()
    yield "packages", host.check_packages()
    yield "rights", disk.check_rights(directory)
    yield "log", check_log(directory)
    yield "file system", disk.check_file_system(directory)
    yield "space", disk.check_space(directory, budget)
    yield "disk", disk.check_speed(directory)
    yield "limits", host.check_limits()
    local = pipeline is None or pipeline.spark.local
    need = memory_need(pipeline)
    yield "memory", host.check_memory(need.total if local else need.total - need.workers)
    yield "network", host.check_network(local=local)
    yield from _spark_checks(pipeline)
    if pipeline is not None and document is not None:
        yield "pipeline", check_pipeline_file(pipeline, document)


def _spark_checks(pipeline: Pipeline | None) -> Iterator[tuple[str, Iterable[Finding]]]:
    try:
        cache = cache_directory()
    except EnvironmentFault as error:
        yield "cache", [host.problem(str(error))]
        return
    problems = list(disk.check_cache(cache))
    yield "cache", problems
    if any(each.level == "problem" for each in problems):
        return  # Java's launcher could not be written there.
    master = "local" if pipeline is None else pipeline.spark.master
    local = pipeline is None or pipeline.spark.local
    yield "java" if local else "spark", probe_spark(master, cache, local=local)
