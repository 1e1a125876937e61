"""The file of an exported execution says all that its parts say, and what is no part is refused."""

import json
from collections.abc import Iterator

import pytest

from services.coordinator.store.codec import opened
from tests.support.golden import EVENTS, JOURNALS, read_json
from windlass.cli.export_text import NotAnExport, line_of, part_of
from windlass.journal.v1.export_pb2 import ExportPart


def stored_parts() -> Iterator[ExportPart]:
    """An event of every type, with all its fields; and all events of all golden journals."""
    rows = [bytes.fromhex(read_json(path)["stored"]) for path in sorted(EVENTS.iterdir())]
    for folder in sorted(JOURNALS.iterdir()):
        rows += map(bytes.fromhex, (folder / "journal.hex").read_text().split())
    for row in rows:
        append, messages = opened(row)
        for seq, message in enumerate(messages, append.first_seq):
            part = ExportPart()
            part.event.seq, part.event.epoch, part.event.schema_version = seq, append.epoch, append.schema_version
            part.event.time.FromMicroseconds(append.time)
            part.event.event.CopyFrom(message)
            yield part


def test_every_event_comes_back_from_its_line() -> None:
    parts = list(stored_parts())
    assert len(parts) > 200
    for part in parts:
        assert part_of(line_of(part), ExportPart()) == part


def test_a_payload_is_readable_and_other_bytes_are_base64() -> None:
    part = ExportPart()
    part.event.event.run_succeeded.output.json = b'{"x": 4}'
    part.event.event.run_succeeded.inputs_hash = b"\x00\xff"
    part.event.event.run_succeeded.then.edges = b"\x00"
    succeeded = json.loads(line_of(part))["event"]["event"]["run_succeeded"]
    assert succeeded["output"]["json"] == '{"x": 4}'
    assert succeeded["inputs_hash"] == "base64:AP8="
    assert part_of(line_of(part), ExportPart()) == part
    part.event.event.run_succeeded.output.json = b"base64:looks like it"
    assert part_of(line_of(part), ExportPart()) == part


def test_a_line_shows_no_control_character() -> None:
    part = ExportPart()
    part.header.workflow = "a\x1b[2J\u202eb"
    line = line_of(part)
    assert line.isprintable()
    assert part_of(line, ExportPart()) == part


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "Expecting value"),
        ("[]", "no JSON object"),
        ('{"people": {}}', "no field 'people'"),
        ('{"event": {"seq": "x"}}', "'seq' is malformed"),
        ('{"event": {"seq": 1e400}}', "'seq' is malformed"),
        ('{"event": {"time": "yesterday"}}', "'time' is malformed"),
        ('{"event": {"time": 7}}', "'time' is malformed"),
        ('{"header": {"definition": 7}}', "'definition' is malformed"),
        ('{"header": {"definition": "base64:?"}}', "'definition' is malformed"),
        ('{"event": {"event": {"run_failed": {"error": {"error_class": "NONE"}}}}}', "is malformed"),
        ('{"event": {"event": {"run_succeeded": {"then": {"ready": 7}}}}}', "'ready' is malformed"),
        ('{"event": {"event": {"execution_started": {"origin": {"labels": []}}}}}', "'labels' is malformed"),
        ('{"event": ' * 2_000, "recursion|Expecting"),
    ],
)
def test_what_is_no_part_is_refused(line: str, told: str) -> None:
    with pytest.raises(NotAnExport, match=told):
        part_of(line, ExportPart())


def test_a_line_that_is_no_json_is_described_without_a_second_number_of_a_line() -> None:
    with pytest.raises(NotAnExport) as fault:
        part_of('{"header": {]}', ExportPart())
    assert str(fault.value) == ("this is not JSON: Expecting property name enclosed in double quotes at character 13")


def test_bytes_that_are_no_text_are_said_to_be_none() -> None:
    with pytest.raises(NotAnExport, match="not text in UTF-8"):
        part_of(b"\xdf\x00", ExportPart())
