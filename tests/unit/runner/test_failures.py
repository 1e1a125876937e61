"""Classes of failures, as the retry policy sees them."""

import pytest

from services.runner.core.failures import MESSAGE_CHARACTERS_MAX, ErrorClass, cut, of_exception, of_status


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


def test_messages_are_bounded_and_without_nul() -> None:
    assert cut("a\0b") == "a\N{REPLACEMENT CHARACTER}b"
    assert len(cut("x" * 10_000)) == MESSAGE_CHARACTERS_MAX
