"""The alert TransporterGone: the engine that it reports as missing, and after how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from promql_tools import fires, samples_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from promql_tools import Sample

INFO = 'transporter_info{{pipeline="{pipeline}",version="{version}"}} 1\n'
NOW = 3000
"""The minute of a test, with all engines running for two days by then."""
Answer = tuple[str, str] | None
"""A target's pipeline and version, or ``None`` if it does not answer."""
ONE, OTHER = ("etl", "1"), ("etl", "1")


def scraped(targets: Callable[[int], dict[str, Answer]]) -> Callable[[int], list[Sample]]:
    """Return the samples of each minute in which *targets* are scraped, by their instance."""

    def samples(minute: int) -> list[Sample]:
        found: list[Sample] = []
        for instance, answer in targets(minute).items():
            place = {"job": "engines", "instance": instance}
            found.append(("up", place, float(answer is not None)))
            if answer is not None:
                page = INFO.format(pipeline=answer[0], version=answer[1])
                found += samples_of(page, **place)
        return found

    return samples


def gone(targets: Callable[[int], dict[str, Answer]], minute: int = NOW) -> list[dict[str, str]]:
    """Return the labels with which the alert fires in this minute."""
    return fires("TransporterGone", scraped(targets), minute)


def test_engines_that_answer_are_not_gone() -> None:
    """Two engines that have always answered raise no alert."""
    assert gone(lambda _: {"a": ONE, "b": OTHER}) == []


def test_one_of_two_that_does_not_answer_is_named() -> None:
    """One of two engines that does not answer is reported after five minutes, not before."""
    targets = lambda minute: {"a": ONE, "b": OTHER if minute < NOW else None}  # noqa: E731
    assert gone(targets, NOW + 4) == []
    expected = [{"job": "engines", "instance": "b", "pipeline": "etl"}]
    assert gone(targets, NOW + 5) == expected
    # It is still reported when the value of an hour ago is no longer a comparison.
    assert gone(targets, NOW + 300) == expected
    assert gone(targets, NOW + 1500) == []


def test_one_of_two_that_discovery_has_dropped_is_missed() -> None:
    """A target that is no longer scraped has no ``up``, and its pipeline has an engine less."""
    targets = lambda minute: {"a": ONE, **({"b": OTHER} if minute < NOW else {})}  # noqa: E731
    assert gone(targets, NOW + 4) == []
    assert gone(targets, NOW + 5) == [{"job": "engines", "pipeline": "etl"}]
    # After an hour the smaller number is the normal one.
    assert gone(targets, NOW + 60) == []


def test_the_only_one_of_its_pipeline_is_missed() -> None:
    """The only engine of a pipeline is reported, also while other pipelines have engines."""
    targets = lambda minute: {"a": ONE, **({"b": ("shop", "1")} if minute < NOW else {})}  # noqa: E731
    assert gone(targets, NOW + 5) == [{"job": "engines", "pipeline": "shop"}]


def test_no_engine_at_all_is_one_alert() -> None:
    """An alert without a name is raised if nothing has been scraped for long."""
    assert gone(lambda _: {}) == [{}]
    assert gone(lambda minute: {"a": ONE} if minute < NOW else {}, NOW + 100) == [{}]


def test_a_restart_with_another_version_is_not_missed() -> None:
    """An engine that comes back as another version is the same instance."""
    targets = lambda minute: {"a": ONE if minute < NOW else ("etl", "2")}  # noqa: E731
    assert gone(targets, NOW + 5) == []


def test_an_engine_that_moves_is_not_missed() -> None:
    """A replaced pod has another name, and the pipeline has as many engines as before."""
    targets = lambda minute: {"a": ONE} if minute < NOW else {"c": ONE}  # noqa: E731
    assert gone(targets, NOW + 5) == []


def test_a_job_that_is_not_ours_sets_nothing_off() -> None:
    """A target that was never a transporter raises no alert of ours."""
    assert gone(lambda _: {"a": ONE, "exporter": None}) == []
