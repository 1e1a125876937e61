"""Logs as JSON lines on standard error: each line has one event and its facts as fields.

`log.info("dispatched execution", execution_id=…)`: the event is a constant text that people can search for.

Secrets are kept out in two ways: a field whose name tells of a secret is blanked, and user, password and query are cut
out of URLs. Foreign text may hold control characters, which a terminal would obey. JSON escapes only the oldest of
them; the others are escaped too.

Records of libraries that use `logging` come out in the same form, with their `extra` as fields. They appear from
WARNING on, unless their own logger has a level.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, Final

import orjson

# structlog's console renderer, which we do not use, imports rich if it is installed. That costs 4 MB in every process,
# and its tracebacks show the values of local variables. The import system takes None for "not installed".
_rich: object = sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
import structlog  # noqa: E402

if _rich is None:
    del sys.modules["rich"]

_SECRET_NAME: Final = re.compile(r"(^|_)(key|secret|password|token|authorization|credential)$", re.I)
_URL_USER: Final = re.compile(r"(://)[^/?#\s]+@")
_URL_QUERY: Final = re.compile(r"(://[^?#\s]*\?)[^#\s]+")
# DEL, C1, marks that change the direction of writing, and separators of lines, in UTF-8.
_CONTROL: Final = re.compile(rb"\x7f|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]")
_LEVELS: Final = logging.getLevelNamesMapping()

Log = structlog.typing.FilteringBoundLogger


def logger(name: str) -> Log:
    """It may be made at import, before `setup_logging`, because it is configured at its first use."""
    made: Log = structlog.get_logger(origin=name)
    return made


def setup_logging(*, service: str, replica: str = "0", level: str = "INFO") -> None:
    if level.upper() not in _LEVELS:
        raise ValueError(f"log level {level!r} is none of {', '.join(_LEVELS)}")
    threshold = _LEVELS[level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.processors.format_exc_info,
            without_secrets,
            _with_origin(service, replica),
            structlog.processors.JSONRenderer(serializer=_as_json),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.BytesLoggerFactory(file=sys.stderr.buffer),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [_IntoStructlog()]
    root.setLevel(max(threshold, logging.WARNING))


def without_secrets(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in event.items():
        if _SECRET_NAME.search(name):
            event[name] = "[withheld]"
        elif isinstance(value, str) and "://" in value:
            event[name] = _URL_QUERY.sub(r"\1[withheld]", _URL_USER.sub(r"\1[withheld]@", value))
    return event


def _with_origin(service: str, replica: str) -> structlog.typing.Processor:
    def add(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event["service"], event["replica"] = service, replica
        return event

    return add


def _as_json(event: object, **_: object) -> bytes:
    try:
        line = orjson.dumps(event, default=repr)
    except TypeError:
        # A value that JSON cannot hold: a lone surrogate, a number over 64 bits, a key that is no text.
        line = orjson.dumps({"event": ascii(event)})
    return _CONTROL.sub(lambda found: b"\\u%04x" % ord(found[0].decode()), line)


# The attributes of every record. All others were given as `extra`.
_OF_ANY_RECORD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}
# Names that structlog takes for its own arguments.
_TAKEN: Final = {"event": "event_", "level": "level_"}


class _IntoStructlog(logging.Handler):
    """Logs the records of libraries in our own form."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields: dict[str, Any] = {
                _TAKEN.get(name, name): value for name, value in record.__dict__.items() if name not in _OF_ANY_RECORD
            }
            fields["origin"] = record.name
            if record.exc_info:
                fields["exc_info"] = record.exc_info
            structlog.get_logger().log(record.levelno, record.getMessage(), **fields)
        except Exception:  # noqa: BLE001 - no log line may end a process
            self.handleError(record)
