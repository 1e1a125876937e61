"""Classes of failures, as the retry policy sees them."""

import pytest

from services.runner.core.failures import ErrorClass, class_named, of_exception, of_status


@pytest.mark.parametrize(
    ("error_class", "statuses"),
    [
        (None, [200, 204, 304]),
        (ErrorClass.PERMANENT, [400, 401, 403, 404, 409, 410, 422, 451]),
        (ErrorClass.TRANSIENT, [408, 425, 429, 500, 502, 503, 504]),
    ],
)
def test_class_of_an_http_failure_follows_from_its_status(error_class: ErrorClass | None, statuses: list[int]) -> None:
    assert {of_status(status) for status in statuses} == {error_class}


@pytest.mark.parametrize(
    ("error", "error_class"),
    [
        (OSError("reset"), ErrorClass.TRANSIENT),
        (RuntimeError("busy"), ErrorClass.TRANSIENT),
        (TimeoutError(), ErrorClass.TIMEOUT),
        (ValueError("bad"), ErrorClass.PERMANENT),
        (KeyError("absent"), ErrorClass.PERMANENT),
    ],
)
def test_class_of_a_failure_follows_from_what_was_raised(error: Exception, error_class: ErrorClass) -> None:
    assert of_exception(error).error_class is error_class


def test_an_error_without_text_is_told_by_its_name() -> None:
    assert of_exception(SystemExit()).message == "the module raised SystemExit"


def test_a_class_by_a_name_that_is_none_is_transient() -> None:
    assert class_named("PERMANENT") is ErrorClass.PERMANENT
    assert class_named(["PERMANENT"]) is ErrorClass.TRANSIENT
