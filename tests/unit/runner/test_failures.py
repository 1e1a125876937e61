"""Classes of failures, as the retry policy sees them."""

import pytest

from services.runner.core.failures import FailureClass, class_named, of_exception, of_status


@pytest.mark.parametrize(
    ("failure_class", "statuses"),
    [
        (None, [200, 204, 304]),
        (FailureClass.PERMANENT, [400, 401, 403, 404, 409, 410, 422, 451]),
        (FailureClass.TRANSIENT, [408, 425, 429, 500, 502, 503, 504]),
    ],
)
def test_class_of_an_http_failure_follows_from_its_status(
    failure_class: FailureClass | None, statuses: list[int]
) -> None:
    assert {of_status(status) for status in statuses} == {failure_class}


@pytest.mark.parametrize(
    ("error", "failure_class"),
    [
        (OSError("reset"), FailureClass.TRANSIENT),
        (RuntimeError("busy"), FailureClass.TRANSIENT),
        (TimeoutError(), FailureClass.TIMEOUT),
        (ValueError("bad"), FailureClass.PERMANENT),
        (KeyError("absent"), FailureClass.PERMANENT),
    ],
)
def test_class_of_a_failure_follows_from_what_was_raised(error: Exception, failure_class: FailureClass) -> None:
    assert of_exception(error).failure_class is failure_class


def test_an_error_without_text_is_told_by_its_name() -> None:
    assert of_exception(SystemExit()).message == "the module raised SystemExit"


def test_a_class_by_a_name_that_is_none_is_transient() -> None:
    assert class_named("PERMANENT") is FailureClass.PERMANENT
    assert class_named(["PERMANENT"]) is FailureClass.TRANSIENT
