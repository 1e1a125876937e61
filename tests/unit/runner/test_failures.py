"""Classes of failures, as the retry policy sees them."""

import pytest

from services.runner.core.failures import ErrorClass, class_named, of_exception, of_status


@pytest.mark.parametrize(
    ("status", "error_class"),
    [
        (200, None),
        (304, None),
        (400, ErrorClass.PERMANENT),
        (401, ErrorClass.PERMANENT),
        (404, ErrorClass.PERMANENT),
        (408, ErrorClass.TRANSIENT),
        (425, ErrorClass.TRANSIENT),
        (429, ErrorClass.TRANSIENT),
        (500, ErrorClass.TRANSIENT),
        (503, ErrorClass.TRANSIENT),
    ],
)
def test_http_answers(status: int, error_class: ErrorClass | None) -> None:
    assert of_status(status) is error_class


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
def test_raised_errors(error: Exception, error_class: ErrorClass) -> None:
    assert of_exception(error).error_class is error_class


def test_an_error_without_text_is_told_by_its_name() -> None:
    assert of_exception(SystemExit()).message == "the module raised SystemExit"


def test_a_class_by_a_name_that_is_none_is_transient() -> None:
    assert class_named("PERMANENT") is ErrorClass.PERMANENT
    assert class_named(["PERMANENT"]) is ErrorClass.TRANSIENT
