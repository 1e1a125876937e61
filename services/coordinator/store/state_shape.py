"""Says how the parts of the state are stored: as plain lists for orjson, made from the dataclasses of `core/state.py`.

An object is a list of its fields, in their order. The type of a field decides its form, so a new field takes part by
itself, and a type that has no form fails the import.

    Work, WorkLoop, Run      named by their key or number wherever another object refers to them
    Wait, CircuitHold, ...   stored where they are met first, and named by their place from then on

The definition is not stored. The node of a piece of work follows from its key.
"""

from __future__ import annotations

import types
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

from services.coordinator.core.approvals import Approval
from services.coordinator.core.definition import Definition
from services.coordinator.core.state import CircuitHold, DeadLetter, Run, Wait, Work, WorkLoop
from services.coordinator.core.values import OutputRef, Value, WorkKey

# They are changed in place, and others refer to them.
_SHARED: Final = (Wait, CircuitHold, DeadLetter, Approval)


class Out:
    """Gathers what is written of one state."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        # Everything that may be long is bytes.
        self.payload_bytes = 0

    def place(self, shared: object) -> int | None:
        """None: it is met for the first time, and has the next place from now on."""
        place = self._places.get(id(shared))
        if place is None:
            self._places[id(shared)] = len(self._places)
        return place


class In:
    """What is read of one state."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.works: dict[WorkKey, Work] = {}
        self.loops: dict[WorkKey, WorkLoop] = {}
        self.runs: list[Run] = []
        self.shared: list[Any] = []


Put: TypeAlias = Callable[[Any, Out], Any]
Take: TypeAlias = Callable[[Any, In], Any]


class StateForm(NamedTuple):
    # None: the value is stored as it is.
    put: Put | None
    take: Take | None
    # It says what the form is, for the hash.
    shape: str


def _put_bytes(value: bytes, out: Out) -> str:
    # Each byte is one character, so that all bytes can be stored.
    out.payload_bytes += len(value)
    return value.decode("latin-1")


def _take_bytes(value: str, _: In) -> bytes:
    return value.encode("latin-1")


def _put_value(value: Value, out: Out) -> Any:
    return _put_bytes(value, out) if isinstance(value, bytes) else [value.key, value.sha256, value.size_bytes]


def _take_value(value: Any, into: In) -> Value:
    return _take_bytes(value, into) if isinstance(value, str) else OutputRef(*value)


def _take_key(key: Any, _: In) -> WorkKey:
    return WorkKey(*key)


def _or_none(form: StateForm, shape: str) -> StateForm:
    put, take = form.put, form.take
    if put is None or take is None:
        return form._replace(shape=shape)
    return StateForm(
        lambda value, out: None if value is None else put(value, out),
        lambda value, into: None if value is None else take(value, into),
        shape,
    )


_VALUE: Final = StateForm(_put_value, _take_value, f"value({','.join(each.name for each in fields(OutputRef))})")
_PLAIN: Final = {each: StateForm(None, None, each.__name__) for each in (int, str, bool, float)}
_FORMS: Final[dict[Any, StateForm]] = {
    **_PLAIN,
    bytes: StateForm(_put_bytes, _take_bytes, "bytes"),
    Value: _VALUE,
    Value | None: _or_none(_VALUE, f"({_VALUE.shape})"),
    WorkKey: StateForm(lambda key, _: [*key], _take_key, "key"),
    Work: StateForm(lambda work, _: [*work.key], lambda key, into: into.works[WorkKey(*key)], "work"),
    WorkLoop: StateForm(lambda loop, _: [*loop.work.key], lambda key, into: into.loops[WorkKey(*key)], "loop"),
    Run: StateForm(lambda run, _: run.number, lambda number, into: into.runs[number - 1], "run"),
}


def form_of(hint: Any) -> StateForm:
    form = _FORMS.get(hint)
    if form is None:
        form = _FORMS[hint] = _made(hint)
    return form


def _made(hint: Any) -> StateForm:
    origin, given = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _union(given)
    if origin is not None:
        return _container(origin, given)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum(hint)
    if hint in _SHARED:
        return _shared(hint)
    if is_dataclass(hint) or (isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")):
        return _record(hint)
    raise TypeError(f"{hint} has no form; give it one in {__name__}")


def _enum(hint: type[Enum]) -> StateForm:
    members = {member.value: member for member in hint}
    shape = f"{hint.__name__}({','.join(map(str, members))})"
    return StateForm(lambda member, _: member._value_, lambda value, _: members[value], shape)


def _union(hints: Sequence[Any]) -> StateForm:
    chosen = [hint for hint in hints if hint is not type(None)]
    forms = [form_of(hint) for hint in chosen]
    shape = f"({'|'.join(form.shape for form in forms)})"
    if len(forms) == 1:
        return _or_none(forms[0], shape)
    places = {hint: place for place, hint in enumerate(chosen)}

    def put(value: Any, out: Out) -> Any:
        if value is None:
            return None
        place = places[type(value)]
        form = forms[place]
        return [place, value if form.put is None else form.put(value, out)]

    def take(value: Any, into: In) -> Any:
        if value is None:
            return None
        place, item = value
        form = forms[place]
        return item if form.take is None else form.take(item, into)

    return StateForm(put, take, shape)


def _container(origin: Any, hints: Sequence[Any]) -> StateForm:
    forms = [form_of(hint) for hint in hints if hint not in (Ellipsis, None, type(None))]
    shape = f"{origin.__name__}[{','.join(form.shape for form in forms)}]"
    puts = [form.put or _as_it_is for form in forms]
    takes = [form.take or _as_it_is for form in forms]
    if origin is tuple and Ellipsis not in hints:
        return StateForm(
            lambda value, out: [put(item, out) for put, item in zip(puts, value, strict=True)],
            lambda value, into: tuple([take(item, into) for take, item in zip(takes, value, strict=True)]),
            shape,
        )
    if len(forms) == 2:
        return _mapping(OrderedDict if origin is OrderedDict else dict, (puts[0], puts[1]), (takes[0], takes[1]), shape)
    ((put, take),) = zip(puts, takes, strict=True)
    if origin is OrderedDict:
        return StateForm(
            lambda value, out: [put(item, out) for item in value],
            lambda value, into: OrderedDict((take(item, into), None) for item in value),
            shape,
        )
    makes: dict[Any, Any] = {tuple: tuple, list: list, deque: deque}
    make = makes.get(origin, tuple)
    return StateForm(
        lambda value, out: [put(item, out) for item in value],
        lambda value, into: make([take(item, into) for item in value]),
        shape,
    )


def _mapping(make: Any, puts: tuple[Put, Put], takes: tuple[Take, Take], shape: str) -> StateForm:
    (put_key, put_item), (take_key, take_item) = puts, takes
    return StateForm(
        lambda value, out: [[put_key(key, out), put_item(item, out)] for key, item in value.items()],
        lambda value, into: make([(take_key(key, into), take_item(item, into)) for key, item in value]),
        shape,
    )


def _as_it_is(value: Any, _: Any) -> Any:
    return value


class Shape(NamedTuple):
    """A class whose fields are stored."""

    names: tuple[str, ...]
    # One for each of the names. The functions change the lists that they are given.
    put: Callable[[list[Any], Out], list[Any]]
    take: Callable[[list[Any], In], list[Any]]
    # A description of the shape, for its hash.
    text: str


def shape_of(make: Any, *, left_out: Collection[str] = (), joined_later: Collection[str] = ()) -> Shape:
    """Fields that are left out are stored as None and read as None. Those that are joined later are read as the key or
    the number of what they refer to."""
    hints = get_type_hints(make)
    names = tuple(each.name for each in fields(make)) if is_dataclass(make) else make._fields
    forms = {name: form_of(hints[name]) for name in names if name not in left_out}
    puts = [(place, forms[name].put) for place, name in enumerate(names) if name in forms]
    takes = [(place, forms[name].take) for place, name in enumerate(names) if name in forms.keys() - joined_later]
    given_puts = [(place, put) for place, put in puts if put is not None]
    given_takes = [(place, take) for place, take in takes if take is not None]
    unstored = [place for place, name in enumerate(names) if name in left_out]

    def put_all(values: list[Any], out: Out) -> list[Any]:
        for place in unstored:
            values[place] = None
        for place, put in given_puts:
            value = values[place]
            if value is not None:
                values[place] = put(value, out)
        return values

    def take_all(values: list[Any], into: In) -> list[Any]:
        for place, take in given_takes:
            value = values[place]
            if value is not None:
                values[place] = take(value, into)
        return values

    text = ",".join(f"{name}:{form.shape}" for name, form in forms.items())
    return Shape(names, put_all, take_all, f"{make.__name__}({text})")


def reader(names: Sequence[str]) -> Callable[[Any], list[Any]]:
    """Reads these fields of an object. There are at least two."""
    read = attrgetter(*names)
    return lambda item: list(read(item))


def _record(make: Any) -> StateForm:
    shape = shape_of(make)
    take = shape.take
    if len(shape.names) == 1:
        (name,) = shape.names
        return StateForm(
            lambda item, out: shape.put([getattr(item, name)], out),
            lambda values, into: make(*take(values, into)),
            shape.text,
        )
    read, put = reader(shape.names), shape.put
    return StateForm(lambda item, out: put(read(item), out), lambda values, into: make(*take(values, into)), shape.text)


def _shared(make: Any) -> StateForm:
    record = _record(make)

    def put_shared(item: Any, out: Out) -> Any:
        place = out.place(item)
        return record.put(item, out) if place is None and record.put is not None else place

    def take_shared(value: Any, into: In) -> Any:
        if isinstance(value, int):
            return into.shared[value]
        place = len(into.shared)
        into.shared.append(None)
        item = into.shared[place] = record.take(value, into) if record.take is not None else value
        return item

    return StateForm(put_shared, take_shared, record.shape)
