"""Events to stored bytes and back."""

import zlib
from dataclasses import fields, replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.coordinator.core.events import Event, ExecutionFinished, RunLeased, WaitEnded
from services.coordinator.core.values import OutputRef
from services.coordinator.store.codec import (
    SCHEMA_VERSION,
    CorruptRecord,
    Stored,
    UnknownEvent,
    encode_event,
    seal,
    unseal,
)
from services.coordinator.store.event_table import EVENT_TABLE
from tests.support.samples import VARIANTS, T, sample
from tests.support.story import EXECUTION_ID
from windlass.journal.v1.events_pb2 import Event as EventMessage
from windlass.journal.v1.journal_pb2 import Append

EVENTS = get_args(Event)
EPOCH = 7


def sealed(*events):
    return seal(EXECUTION_ID, 12, EPOCH, T, [encode_event(event) for event in events])


@pytest.mark.parametrize("kind", EVENTS)
@pytest.mark.parametrize("variant", [0, *VARIANTS])
def test_every_event_comes_back_as_it_was(kind, variant):
    event = sample(kind, variant)
    assert unseal(sealed(event)) == [Stored(EXECUTION_ID, 12, EPOCH, event)]


@pytest.mark.parametrize("output", [None, b"", OutputRef("", "", 0)])
def test_an_empty_output_is_not_the_same_as_none(output):
    event = replace(sample(ExecutionFinished, 0), output=output)
    assert [each.event for each in unseal(sealed(event))] == [event]


def test_all_events_of_an_append_come_back_in_order():
    events = [sample(kind, variant) for variant in VARIANTS for kind in EVENTS]
    assert [(each.seq, each.event) for each in unseal(sealed(*events))] == list(enumerate(events, 12))
    assert unseal(sealed()) == []


@pytest.mark.parametrize("kind", EVENTS)
def test_the_message_of_an_event_has_its_fields_and_its_append_has_the_time(kind):
    names = {row.event: row.name for row in EVENT_TABLE}
    message: Any = EventMessage.DESCRIPTOR.fields_by_name[names[kind]].message_type
    assert {"time", *(field.name for field in message.fields)} == {field.name for field in fields(kind)}


@given(st.sampled_from(EVENTS), st.data())
def test_any_damage_is_found(kind, data):
    stored = bytearray(sealed(sample(kind, 1)))
    place = data.draw(st.integers(0, len(stored) - 1))
    stored[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptRecord):
        unseal(bytes(stored))


@pytest.mark.parametrize("cut", [0, 1, 4, 5, 20])
def test_bytes_that_were_cut_off_are_found(cut):
    with pytest.raises(CorruptRecord):
        unseal(sealed(sample(RunLeased, 1))[:cut])


def test_bytes_that_are_no_append_are_found_even_if_their_checksum_fits():
    with pytest.raises(CorruptRecord):
        unseal(with_checksum(b"\xff\xff\xff"))


@pytest.mark.parametrize(
    "newer",
    [
        # Field 99, length-delimited: {1: 7}. An event that this version does not know.
        b"\x9a\x06\x02\x08\x07",
        b"",
    ],
)
def test_an_event_of_a_newer_version_is_unknown_and_its_neighbours_are_not(newer):
    known = sample(RunLeased, 1)
    stored = seal(EXECUTION_ID, 12, EPOCH, T, [encode_event(known), newer])
    assert [each.event for each in unseal(stored)] == [known, UnknownEvent(SCHEMA_VERSION)]


def test_a_known_event_that_says_more_is_unknown():
    append = Append(schema_version=SCHEMA_VERSION + 1, execution_id=EXECUTION_ID, first_seq=5, epoch=9)
    append.events.append(encode_event(sample(WaitEnded, 1)))
    stored = with_checksum(append.SerializeToString())
    assert unseal(stored) == [Stored(EXECUTION_ID, 5, 9, UnknownEvent(SCHEMA_VERSION + 1))]


def with_checksum(body):
    return body + b"\x7d" + zlib.crc32(body).to_bytes(4, "little")
