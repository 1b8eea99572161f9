"""A periodic query that never blocks."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from transporter_adaptors.kafka.cluster import Ends
from transporter_adaptors.kafka.survey import EVERY, LATE, ClusterSurvey

from transporter.errors import SourceUnavailable


class Asked:
    """A query that keeps its pending answers."""

    def __init__(self) -> None:
        self.questions: list[Future[int]] = []

    def __call__(self) -> Future[int]:
        """Start another query."""
        self.questions.append(Future())
        return self.questions[-1]


def test_an_answer_is_taken_when_it_has_come() -> None:
    """The previous answer stays until the next one has come, and no query is added meanwhile."""
    asked = Asked()
    survey = ClusterSurvey(asked)
    assert not survey.poll(10.0)
    asked.questions[0].set_result(7)
    assert survey.poll(10.0)
    assert survey.answer == 7
    assert not survey.poll(10.0 + EVERY)
    assert not survey.poll(9.0 + EVERY + LATE)
    assert (survey.answer, len(asked.questions)) == (7, 2)
    asked.questions[1].set_result(8)
    assert survey.poll(9.0 + EVERY + LATE)
    assert survey.answer == 8


def test_an_answer_that_is_late_leaves_no_old_one() -> None:
    """A late answer leaves none, and no query is added until it has come."""
    asked = Asked()
    survey = ClusterSurvey(asked)
    survey.poll(10.0)
    asked.questions[0].set_result(7)
    survey.poll(10.0)
    survey.poll(10.0 + EVERY)
    for later in (0.0, 60.0):
        assert survey.poll(10.0 + EVERY + LATE + later)
        assert (survey.answer, len(asked.questions)) == (None, 2)
    asked.questions[1].set_result(8)
    assert survey.poll(100.0)
    assert survey.answer == 8


def test_no_more_is_asked_than_once_in_a_while() -> None:
    """A query is sent at most once per interval, however often the survey is polled."""
    asked = Asked()
    survey = ClusterSurvey(asked)
    survey.poll(10.0)
    asked.questions[0].set_result(7)
    for _ in range(9):
        survey.poll(10.0 + EVERY / 2)
    assert len(asked.questions) == 1


@pytest.mark.parametrize(
    "error", [SourceUnavailable("gone"), KafkaException(KafkaError(KafkaError._TIMED_OUT))]
)
def test_a_question_that_fails_leaves_no_old_answer(error: Exception) -> None:
    """A failed query removes the old answer until the next one."""
    asked = Asked()
    survey = ClusterSurvey(asked)
    survey.poll(10.0)
    asked.questions[0].set_result(7)
    survey.poll(10.0)
    survey.poll(10.0 + EVERY)
    asked.questions[1].set_exception(error)
    assert survey.poll(10.0 + EVERY)
    assert survey.answer is None


def test_a_question_that_cannot_be_asked_is_one_that_fails() -> None:
    """A query that cannot be sent counts as failed, and is retried after the interval."""
    calls: list[int] = []

    def fail() -> Future[int]:
        calls.append(1)
        raise SourceUnavailable("gone")

    survey = ClusterSurvey(fail)
    assert survey.poll(10.0)
    assert not survey.poll(10.0)
    assert survey.poll(10.0 + EVERY)
    assert (survey.answer, len(calls)) == (None, 2)


def test_what_is_forgotten_is_not_answered_later() -> None:
    """An answer to a query from before a long pause is ignored."""
    asked = Asked()
    survey = ClusterSurvey(asked)
    survey.poll(10.0)
    survey.reset()
    asked.questions[0].set_result(7)
    assert not survey.poll(10.0)
    assert survey.answer is None


def test_ends_are_known_when_all_of_them_are() -> None:
    """The ends are known only when all of them are."""
    first, second = Future[SimpleNamespace](), Future[SimpleNamespace]()
    ends = Ends({TopicPartition("t", 0): first, TopicPartition("t", 1): second})
    first.set_result(SimpleNamespace(offset=3))
    assert not ends.done()
    second.set_result(SimpleNamespace(offset=4))
    assert ends.done()
    assert ends.result() == {("t", 0): 3, ("t", 1): 4}
