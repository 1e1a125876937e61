"""docs/runners.md and the contract know every fault that ends a session of a runner, and every reason for a refusal."""

import re
from pathlib import Path

from services.chassis.lease.frames import REPORT_INVALID
from services.coordinator.core.decision import RefusalReason
from tests.support.reasons import named_in, stream_faults
from windlass.conformance.stories.ending import FAULTS

ROOT = Path(__file__).resolve().parents[1]
SERVERS = ("services/chassis", "services/coordinator")
CONTRACT = "protos/windlass/types/v1/session.proto"
# After these a runner does not go on as it was, so other stories tell of them.
APART = {"INSTANCE_ENDED"}


def given() -> set[str]:
    paths = [path for folder in SERVERS for path in (ROOT / folder).rglob("*.py")]
    return {reason for path in paths for reason in stream_faults(path.read_text())}


def test_page_and_contract_know_every_fault() -> None:
    faults = given()
    assert {"ATTACH_EXPECTED", "SERVER_STOPPING", "TOO_MANY_SESSIONS", "HELD_EXCEEDED"} <= faults
    assert sorted(faults - named_in((ROOT / "docs/runners.md").read_text())) == []
    table = set(re.findall(r"^//   ([A-Z_]+) ", (ROOT / CONTRACT).read_text(), re.MULTILINE))
    assert sorted(faults - table) == []


def test_page_and_contract_know_every_refusal() -> None:
    """Of a lease that an Attach names, and of a report."""
    refused = {RefusalReason.LEASE_UNKNOWN, RefusalReason.EPOCH_STALE, RefusalReason.LEASE_ENDED}
    reports = {*refused, RefusalReason.EXECUTION_FINAL, REPORT_INVALID}
    messages = dict(re.findall(r"^message (\w+) \{(.*?)^\}", (ROOT / CONTRACT).read_text(), re.MULTILINE | re.DOTALL))
    for name, reasons in (("Refused", refused), ("ReportRefusal", reports)):
        assert set(re.findall(r"([A-Z_]{5,})[:,]", messages[name])) == reasons
    assert sorted(reports - named_in((ROOT / "docs/runners.md").read_text())) == []


def test_kit_sends_every_fault() -> None:
    assert sorted(given() - {*FAULTS, *APART}) == []
