"""Each line is one JSON object without secrets. Logging is global, so each test has a process of its own."""

import json
import subprocess
import sys
from typing import Any

import pytest

from services.chassis.telemetry.logs import setup_logging, without_secrets


def lines_of(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", "from services.chassis.telemetry.logs import *\n" + program],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def logged(program: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines_of(program)]


def test_a_line_has_its_event_fields_and_origin() -> None:
    (line,) = logged(
        "log = logger('shop.till')\n"
        "setup_logging(service='shop', replica='2', level='INFO')\n"
        "log.debug('not shown')\n"
        "log.info('sold', pairs=2, raw=b'x')\n"
    )
    assert line.pop("time").endswith("Z")
    assert line == {
        "event": "sold", "pairs": 2, "raw": "b'x'", "level": "info",
        "service": "shop", "replica": "2", "origin": "shop.till",
    }  # fmt: skip


def test_libraries_speak_in_the_same_form_from_warning_on() -> None:
    lines = logged(
        "import logging\n"
        "setup_logging(service='shop', level='DEBUG')\n"
        "logging.getLogger('lib').info('chatter')\n"
        "try:\n"
        "    raise ValueError('broken')\n"
        "except ValueError:\n"
        "    logging.getLogger('lib').exception('went wrong: %s', 7)\n"
    )
    assert [(line["event"], line["level"], line["origin"]) for line in lines] == [("went wrong: 7", "error", "lib")]
    assert "ValueError: broken" in lines[0]["exception"]


def test_the_extra_of_a_library_is_among_the_fields() -> None:
    (line,) = logged(
        "import logging\n"
        "setup_logging(service='shop')\n"
        "logging.getLogger('lib').warning('odd', extra={'shoe': 41, 'level': 3, 'api_key': 'x'})\n"
    )
    shown = {name: line[name] for name in ("event", "level", "shoe", "level_", "api_key")}
    assert shown == {"event": "odd", "level": "warning", "shoe": 41, "level_": 3, "api_key": "[withheld]"}


def test_facts_that_are_no_json_do_not_cost_the_line() -> None:
    (line,) = logged("setup_logging(service='shop')\nlogger('shop').info('odd', name='\\udcff', number=2**70)\n")
    assert "odd" in line["event"]


def test_control_characters_of_foreign_text_are_escaped() -> None:
    """A line is often looked at in a terminal, which obeys them."""
    name = "é\x1b[2J\x7f\x9b2J\u061c\u200e\u202e\u2066\u2028\n"
    (line,) = lines_of(f"setup_logging(service='shop')\nlogger('shop').info('odd', name={name!r})\n")
    assert line.isprintable()
    assert json.loads(line)["name"] == name


def test_secrets_are_withheld_by_name_and_cut_out_of_urls() -> None:
    event = {
        "api_key": "x", "Authorization": "x", "service_secret": "x", "password": "x",
        "key_id": "kept", "url": "dial postgresql://user:hidden@host/db now",
        "asked": "GET https://hidden@host:8/path?hidden=1&b=hidden#part of https://h?hidden, not http://h/ why? no",
    }  # fmt: skip
    assert without_secrets(None, "info", dict(event)) == {
        "api_key": "[withheld]", "Authorization": "[withheld]", "service_secret": "[withheld]",
        "password": "[withheld]", "key_id": "kept",
        "url": "dial postgresql://[withheld]@host/db now",
        "asked": "GET https://[withheld]@host:8/path?[withheld]#part of https://h?[withheld] not http://h/ why? no",
    }  # fmt: skip


def test_a_level_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="is none of"):
        setup_logging(service="shop", level="LOUD")
