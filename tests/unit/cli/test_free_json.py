"""Free JSON on the command line, also on a protobuf that offers less."""

from __future__ import annotations

import pytest
from google._upb import _message

from windlass.cli.connection import free_json


def test_free_json_needs_no_choice_of_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_message, "SetAllowOversizeProtos")
    assert free_json({"a": {"b": [1]}})["a"]["b"][0] == 1
