"""One comparison of a filter: checks that the field exists and that the value is of its type.

`:` means "has": `labels:region` and `end_time:*` ask whether the field is present; in other places `:` is `=`. With
`=`, `!=` and `:`, an asterisk at the beginning or the end of a text stands for any text; in quotes, `\\*` is an
asterisk.
"""

import re
from typing import Final, NamedTuple

from services.api.app.refusals import invalid_field
from services.api.rpc.filters import OPERATORS, TEXTS, FieldKind, FilterFields, read_time
from services.chassis.grpc.errors import Refusal
from windlass.coordinator.v1 import reads_pb2 as pb

TRIGGERS: Final = frozenset({"MANUAL", "CRON", "EVENT", "WEBHOOK", "QUEUE"})
_HAS: Final = ":"
_EQUALITY: Final = frozenset({_HAS, "=", "!="})
# They have no order.
_UNORDERED: Final = frozenset({FieldKind.STATE, FieldKind.TRIGGER, FieldKind.LIST})
_CHARACTER: Final = re.compile(r"\\.|[^\\]", re.DOTALL)
_SHOWN_CHARACTERS: Final = 40


def shown(text: str) -> str:
    return repr(text[:_SHOWN_CHARACTERS])


def bad_filter(place: int, message: str) -> Refusal:
    return invalid_field("filter", "BAD_FILTER", f"at character {place + 1}: {message}")


class Text(NamedTuple):
    place: int
    # The text without the asterisks that stand for any text.
    text: str
    is_start_open: bool
    is_end_open: bool

    @property
    def is_open(self) -> bool:
        return self.is_start_open or self.is_end_open

    @property
    def is_anything(self) -> bool:
        return self.is_open and not self.text

    @property
    def written(self) -> str:
        return "*" if self.is_anything else f"{'*' * self.is_start_open}{self.text}{'*' * self.is_end_open}"


def value_of(place: int, raw: str) -> Text:
    """An asterisk after a backslash is part of the text."""
    characters = _CHARACTER.findall(raw)
    is_start_open = characters[:1] == ["*"]
    is_end_open = characters[-1:] == ["*"]
    inner = characters[is_start_open : len(characters) - is_end_open]
    if "*" in inner:
        raise bad_filter(
            place, "an asterisk may only stand at the beginning or the end of a text; in quotes, \\* is an asterisk"
        )
    return Text(place, "".join(each[-1] for each in inner), is_start_open, is_end_open)


def restriction(place: int, field: str, comparator: str, value: Text, fields: FilterFields) -> pb.Condition:
    kind = fields.kind_of(field)
    if kind is None and comparator == _HAS and not value.is_open and fields.kind_of(f"{field}.{value.text}"):
        return pb.Condition(present=f"{field}.{value.text}")
    if kind is None:
        raise bad_filter(place, f"{shown(field)} is not a field of filters; use one of {fields.names}")
    if comparator not in _EQUALITY and kind in _UNORDERED:
        raise bad_filter(place, f"{field} can only be compared by =, != and :")
    if comparator == _HAS and value.is_anything:
        return pb.Condition(present=field)
    if not value.is_open or kind not in TEXTS:
        operator, _ = OPERATORS["=" if comparator == _HAS else comparator]
        return pb.Condition(field=field, operator=operator, value=_checked(kind, field, value, fields))
    if comparator not in _EQUALITY:
        raise bad_filter(value.place, "an asterisk stands for any text only with =, != and :")
    if value.is_anything:
        like = pb.Condition(present=field)
    else:
        pattern = pb.Pattern(field=field, text=value.text, open_start=value.is_start_open, open_end=value.is_end_open)
        like = pb.Condition(pattern=pattern)
    return pb.Condition(negated=like) if comparator == "!=" else like


def _checked(kind: FieldKind, field: str, value: Text, fields: FilterFields) -> str:
    """The value as Condition has it. Refuses one that is not of the field's type."""
    if kind is FieldKind.LIST:
        return value.written
    if kind in TEXTS:
        return value.text
    written = value.written
    if kind is FieldKind.NUMBER:
        if re.fullmatch(r"-?[0-9]{1,9}", written) is None:
            raise bad_filter(value.place, f"{field} must be a number, not {shown(written)}")
        return written
    if kind is FieldKind.TIME:
        if read_time(written) is None:
            raise bad_filter(value.place, f'{field} must be a time like "2026-11-01T00:00:00Z", not {shown(written)}')
        return written
    name = fields.synonyms.get(written, written)
    known = fields.states if kind is FieldKind.STATE else TRIGGERS
    if name not in known:
        raise bad_filter(value.place, f"{shown(written)} is not a {field}; use one of {', '.join(sorted(known))}")
    return name
