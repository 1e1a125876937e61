"""Translates a filter to the conditions that coordinators understand.

Hazard: coordinators of earlier versions know only single comparisons. Every other form leaves the operator unset, which
they refuse (reads.proto). The order of texts is sent in such a form too, because they would order by a language.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from services.api.core.filters import TEXTS, AllOf, AnyOf, Condition, Filter, Not, Operator, Pattern, Present, kind_of
from windlass.coordinator.v1 import reads_pb2


def conditions_of(filters: Iterable[Filter]) -> list[reads_pb2.Condition]:
    return [_condition(each) for each in filters]


def _condition(filter_: Filter) -> reads_pb2.Condition:
    match filter_:
        case Condition(field, operator, value):
            sent = reads_pb2.Condition(field=field, operator=operator.name, value=value)  # type: ignore[arg-type] # by name
            is_order = operator not in (Operator.EQUAL, Operator.NOT_EQUAL)
            return _all_of([sent]) if is_order and kind_of(field) in TEXTS else sent
        case Present(field):
            return reads_pb2.Condition(present=field)
        case Pattern(field, text, is_start_open, is_end_open):
            pattern = reads_pb2.Pattern(field=field, text=text, open_start=is_start_open, open_end=is_end_open)
            return reads_pb2.Condition(pattern=pattern)
        case Not(inner):
            return reads_pb2.Condition(negated=_condition(inner))
        case AllOf(inner):
            return _all_of(conditions_of(inner))
        case AnyOf(inner):
            return reads_pb2.Condition(any_of=reads_pb2.Conditions(conditions=conditions_of(inner)))
        case _:
            assert_never(filter_)


def _all_of(conditions: list[reads_pb2.Condition]) -> reads_pb2.Condition:
    return reads_pb2.Condition(all_of=reads_pb2.Conditions(conditions=conditions))
