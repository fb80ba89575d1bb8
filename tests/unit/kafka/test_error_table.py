"""The one table of Kafka's error codes and our errors, read in both directions."""

import pytest
from confluent_kafka import KafkaError

from dovetail import errors
from dovetail.errors import DovetailError
from dovetail.kafka.client.librdkafka import meaning_of
from dovetail.kafka.codec.error_codes import ANSWERED, ErrorCode, code_of, error_for, error_of


@pytest.mark.parametrize("code", sorted(ANSWERED - {ErrorCode.UNKNOWN_SERVER_ERROR}))
def test_what_a_broker_answers_a_client_reads_back(code: ErrorCode) -> None:
    """K1: the error that a client raises would be answered with the code that it got."""
    assert code_of(error_of(code, "trying")) is code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.BatchTooLarge("x"), ErrorCode.MESSAGE_TOO_LARGE),
        (errors.InvalidSetting("x"), ErrorCode.INVALID_REQUEST),
        (errors.Fenced("x"), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (errors.DiskFull("x"), ErrorCode.KAFKA_STORAGE_ERROR),
        (errors.CoordinationDown("x"), ErrorCode.REQUEST_TIMED_OUT),
        (errors.Forbidden("x", kind="group"), ErrorCode.GROUP_AUTHORIZATION_FAILED),
        (ZeroDivisionError("x"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_error_has_the_code_of_its_nearest_ancestor(error: Exception, code: ErrorCode) -> None:
    """K1: a client acts on the code alone."""
    assert code_of(error) is code


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, errors.Unavailable),
        (ErrorCode.REQUEST_TIMED_OUT, errors.Uncertain),
        (ErrorCode.UNKNOWN_SERVER_ERROR, errors.Unavailable),
        (ErrorCode.GROUP_ID_NOT_FOUND, errors.NotFound),
        (ErrorCode.POLICY_VIOLATION, errors.PolicyViolation),
        (9999, errors.Refused),
    ],
)
def test_a_code_is_one_of_our_errors(code: int, kind: type[DovetailError]) -> None:
    """K1: whether it can be tried again is the error's to say; an unknown one is a refusal."""
    error = error_of(code, "trying", "why")
    assert type(error) is kind
    assert str(error).startswith("trying: ")
    assert str(error).endswith("(why)")


def test_librdkafka_has_the_same_codes_and_some_of_its_own() -> None:
    """K1: the command line and the console say the same as a client of ours."""
    assert int(ErrorCode.MESSAGE_TOO_LARGE) == KafkaError.MSG_SIZE_TOO_LARGE
    for code in ErrorCode:
        meaning = meaning_of("trying", KafkaError(int(code)))
        assert type(meaning) is type(error_for(code, "x"))
    assert type(meaning_of("trying", KafkaError(KafkaError._UNKNOWN_TOPIC))) is errors.TopicUnknown
    assert type(meaning_of("trying", KafkaError(KafkaError._MSG_TIMED_OUT))) is errors.Uncertain
