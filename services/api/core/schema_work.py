"""How often one value of an input is looked at when it is checked against a JSON Schema, told before any input comes.

`anyOf: [{$ref: X}, {$ref: X}]` doubles the work of X, and a chain of twenty of them costs a million looks; all of it
fits into a kilobyte. The same grows from value to value when a property is described twice and leads back. So the
schema is walked as a validator would walk it, over every place that an input can have: at a place stands a bag of
subschemas, which in-place applicators (allOf, $ref, if, …) swell, and which properties and items carry on to the
places below. Bags repeat, and each is walked once; that makes recursion end.

Where it is not known what applies, both are counted: patterns overlap, `then` and `else` are both taken.
Hazards: a `$ref` is followed inside this one document. What leads elsewhere, or has a base of its own, is a fault and
not a guess, as the library that validates might follow it to what was not counted here.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, NoReturn
from urllib.parse import unquote

from services.api.core.json_values import DEPTH_MAX
from services.api.core.schema_cost import (
    PATTERN_STATES_MAX,
    faults_of,
    patterns_of,
    positions_of,
    states_of,
    weight_of,
)

# Of one value. A million looks take 6 to 20 ms, when none of them compares much, and the largest input has some 130,000
# values: what a whole input costs is known when it comes, and its reader's to refuse.
EVALUATIONS_MAX: Final = 2_000
# Of one value, in looks: a millisecond, so that some hundred such values can be checked in any case.
WEIGHT_MAX: Final = 100_000
# Of a place or a subschema, in messages.
PATH_CHARACTERS_MAX: Final = 200
# How long the walk itself may be: some times the schema's own size.
STEPS_MIN: Final = 10_000
STEPS_PER_VALUE: Final = 10
STEPS_MAX: Final = 500_000

_DRAFT_4: Final = "draft-04"
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,6}")

_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf"})
_MAPPINGS: Final = ("dependentSchemas", "dependencies")
_SINGLES: Final = ("not", "if", "then", "else")
# To learn which members these have looked at, `unevaluated…` has them evaluated again, twice.
_ASKED_AGAIN: Final = frozenset({"anyOf", "oneOf", "if", "contains"})
_UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")
_OF_CHILDREN: Final = (
    *("properties", "patternProperties", "additionalProperties", "propertyNames", "prefixItems"),
    *("items", "additionalItems", "contains", *_UNEVALUATED),
)


class Work(NamedTuple):
    # Each at the worst place of the worst input: how often a value is looked at,
    evaluations: int
    # what that costs, in looks that compare little,
    weight: int
    # and at how many positions of patterns its text may stand.
    positions: int
    # How many faults it may have, those counted several times that carry much.
    faults: int
    # A value that does not fit is told with all that is wrong by each alternative.
    has_alternatives: bool


class Excess(NamedTuple):
    """Too much, or beyond following; the text is for the schema's author."""

    message: str


class _Beyond(Exception):
    """Ends the walk; it leaves this module as an Excess."""


class _Bearer(NamedTuple):
    """A subschema that says something of the values below; by identity, as dicts have no hash."""

    schema: int
    # How often each element is looked at by its `contains`.
    contains: int


_Bag = Mapping[_Bearer, int]
# Subschemas that apply to one value, each with how often.
_Entries = list[tuple[Any, int]]


class _Place(NamedTuple):
    # Cut off where nobody reads on: there may be as many as steps.
    path: str
    entries: _Entries


def work_of(schema: Any) -> Work | Excess:
    try:
        return _Walk(schema).work()
    except _Beyond as beyond:
        return Excess(str(beyond))


class _Weights(NamedTuple):
    """Of one subschema; services.api.core.schema_cost says what each is."""

    weight: int
    positions: int
    faults: int


class _Looks:
    """How often the value at one place is looked at, in all and by each subschema that is no mere true or false."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.total = 0
        self.by_schema: Counter[int] = Counter()

    def count(self, schema: Any, times: int) -> int:
        self.total += times
        if isinstance(schema, dict):
            self.by_schema[id(schema)] += times
        return times


class _Walk:
    def __init__(self, schema: Any) -> None:
        self._root = schema
        self._own = _text(schema, "$id").removesuffix("#")
        self._draft = _text(schema, "$schema")
        self._anchors: dict[str, list[Any]] = {}
        self._is_of_newest_draft = True
        self._has_alternatives = False
        self._steps = STEPS_MIN
        self._schemas: dict[int, dict[str, Any]] = {}
        self._most = self._heaviest = self._most_positions = self._most_faults = 0
        self._weights: dict[int, _Weights] = {}
        self._patterns: set[str] = set()
        self._followed: dict[str, list[Any]] = {}
        self._survey()
        self._steps = min(self._steps, STEPS_MAX)

    def work(self) -> Work:
        places = [_Place("input", [(self._root, 1)])]
        seen: set[frozenset[tuple[_Bearer, int]]] = set()
        for _ in range(DEPTH_MAX + 1):
            below: list[_Place] = []
            for place in places:
                bag = self._expanded(place)
                key = frozenset(bag.items())
                if key and key not in seen:
                    seen.add(key)
                    below.extend(each for each in self._places_below(place.path, bag) if each.entries)
            places = below
        return Work(
            self._most, self._heaviest, self._most_positions, self._most_faults, self._has_alternatives
        )

    def _survey(self) -> None:
        """Anchors, and what changes the meaning of references, wherever it stands: rather too much than too little."""
        ahead = [self._root]
        while ahead:
            value = ahead.pop()
            self._steps += STEPS_PER_VALUE
            if isinstance(value, list):
                ahead.extend(value)
            if not isinstance(value, dict):
                continue
            ahead.extend(value.values())
            self._has_alternatives |= "anyOf" in value or "oneOf" in value
            self._is_of_newest_draft &= "2020-12" in (_text(value, "$schema") or "2020-12")
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(name := value.get(keyword), str):
                    self._anchors.setdefault(name, []).append(value)
            self._note_identity(value)
            self._patterns.update(patterns_of(value))
        states = 0
        for pattern in self._patterns:
            states += states_of(pattern)
            if states > PATTERN_STATES_MAX:
                raise _Beyond(
                    f"its patterns are too large, with {pattern[:100]!r}: repeat less, use maxLength"
                )

    def _note_identity(self, value: dict[str, Any]) -> None:
        """A base of its own would give the references below it another meaning; `#name` is but an anchor."""
        if value is self._root:
            return
        identity, draft = value.get("$id"), value.get("$schema")
        if isinstance(identity, str) and identity.startswith("#") and identity != "#":
            self._anchors.setdefault(identity[1:], []).append(value)
        elif isinstance(identity, str):
            self._refuse_base("$id", identity)
        if isinstance(draft, str) and _DRAFT_4 in draft:
            self._refuse_base("$schema", draft)
        if isinstance(value.get("id"), str) and _DRAFT_4 in self._draft:
            self._refuse_base("id", value["id"])

    def _refuse_base(self, keyword: str, value: str) -> NoReturn:
        raise _Beyond(
            f"{keyword} {value[:100]!r} below the top: refer to subschemas by their place, #/$defs/NAME"
        )

    def _expanded(self, place: _Place) -> _Bag:
        """Everything that applies to a value at this place; those that go on below it are the answer."""
        bag: Counter[_Bearer] = Counter()
        seen = _Looks(place.path)
        # With how many `unevaluated…` are around it in place. What is ahead is counted already, so it is never much.
        ahead = [(schema, seen.count(schema, times), 0) for schema, times in place.entries]
        self._refuse_many(seen)
        while ahead:
            schema, times, around = ahead.pop()
            self._step()
            if not isinstance(schema, dict):
                continue
            if id(schema) not in self._weights:
                self._weights[id(schema)] = _Weights(
                    weight_of(schema), positions_of(schema), faults_of(schema)
                )
            around += sum(keyword in schema for keyword in _UNEVALUATED)
            again = 1 + 2 * around
            if any(keyword in schema for keyword in _OF_CHILDREN):
                self._schemas[id(schema)] = schema
                bag[_Bearer(id(schema), again)] += times
            for keyword, inner in self._in_place(schema):
                ahead.append(
                    (inner, seen.count(inner, times * again if keyword in _ASKED_AGAIN else times), around)
                )
                self._refuse_many(seen)
        self._weigh(seen)
        return bag

    def _weigh(self, looks: _Looks) -> None:
        each = [(self._weights[schema], times) for schema, times in looks.by_schema.items()]
        weight = looks.total + sum(one.weight * times for one, times in each)
        positions = sum(one.positions * times for one, times in each)
        faults = looks.total + sum(one.faults * times for one, times in each)
        self._most = max(self._most, looks.total)
        self._heaviest = max(self._heaviest, weight)
        self._most_positions = max(self._most_positions, positions)
        self._most_faults = max(self._most_faults, faults)
        if weight > WEIGHT_MAX:
            raise _Beyond(
                f"one value ({looks.path}) could be compared with too much: shorten enum and const, "
                "or look at them fewer times"
            )

    def _refuse_many(self, looks: _Looks) -> None:
        if looks.total > EVALUATIONS_MAX:
            raise _Beyond(self._too_often(looks))

    def _step(self, steps: int = 1) -> None:
        self._steps -= steps
        if self._steps <= 0:
            raise _Beyond("its subschemas meet in too many combinations: describe each property once")

    def _in_place(self, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """What else applies to the same value, by the keyword that says so."""
        for keyword, value in schema.items():
            if keyword in _REFERENCES and isinstance(value, str):
                if value not in self._followed:
                    self._followed[value] = self._targets(value)
                yield from ((keyword, target) for target in self._followed[value])
            elif keyword in _LISTS and isinstance(value, list):
                yield from ((keyword, inner) for inner in value)
            elif keyword in _MAPPINGS and isinstance(value, dict):
                yield from ((keyword, inner) for inner in value.values() if not isinstance(inner, list))
            elif keyword in _SINGLES:
                yield keyword, value

    def _targets(self, reference: str) -> list[Any]:
        """One, or all that have the name."""
        fragment = reference.removeprefix(self._own)
        name = unquote(fragment.removeprefix("#"))
        if fragment[:1] in ("", "#"):
            if not name:
                return [self._root]
            if name in self._anchors:
                return self._anchors[name]
            if name.startswith("/"):
                return [self._pointed_at(name, reference)]
        raise _Beyond(f"the reference {reference[:100]!r} leads nowhere in this schema")

    def _pointed_at(self, pointer: str, reference: str) -> Any:
        value = self._root
        for token in pointer.split("/")[1:]:
            key = token.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and key in value:
                value = value[key]
            elif isinstance(value, list) and _INDEX.fullmatch(key) and int(key) < len(value):
                value = value[int(key)]
            else:
                raise _Beyond(f"the reference {reference[:100]!r} leads nowhere in this schema")
        return value

    def _places_below(self, path: str, bag: _Bag) -> Iterator[_Place]:
        bearers = [(self._schemas[bearer.schema], bearer.contains, times) for bearer, times in bag.items()]
        members: dict[str | None, _Entries] = {None: []}
        for schema, _, times in bearers:
            named = _mapping(schema, "properties")
            self._step(len(named))
            for name, inner in named.items():
                members.setdefault(name, []).append((inner, times))
        # What holds for any name is asked about each.
        for schema, times in [(schema, times) for schema, _, times in bearers if _of_any_name(schema)]:
            # Each pattern meets each name: charged before any of it is made.
            self._step(len(members) * (1 + len(_mapping(schema, "patternProperties"))))
            for called, entries in members.items():
                entries.extend((inner, times) for inner in _of_any_name(schema, called))
        for called, entries in members.items():
            yield _Place(f"{path}.{'*' if called is None else called[:100]}"[:PATH_CHARACTERS_MAX], entries)
        names = [
            (schema["propertyNames"], times) for schema, _, times in bearers if "propertyNames" in schema
        ]
        yield _Place(f"a name in {path}"[:PATH_CHARACTERS_MAX], names)
        leading = max(len(_leading(schema)) for schema, _, _ in bearers)
        for index in range(leading + 1):
            self._step(len(bearers))
            elements: _Entries = []
            for schema, contains, times in bearers:
                elements.extend((inner, times) for inner in self._of_element(schema, index))
                if "contains" in schema:
                    elements.append((schema["contains"], times * contains))
            yield _Place(f"{path}[{index if index < leading else '*'}]"[:PATH_CHARACTERS_MAX], elements)

    def _of_element(self, schema: dict[str, Any], index: int) -> Iterator[Any]:
        """What a schema says of the element at `index` of a list, `contains` apart."""
        leading, items = _leading(schema), schema.get("items")
        if index < len(leading):
            yield leading[index]
            # Older drafts know no prefixItems: their items are for all.
            if not self._is_of_newest_draft and isinstance(items, dict):
                yield items
        elif isinstance(items, dict | bool):
            yield items
        else:
            yield from (
                schema[keyword] for keyword in ("additionalItems", "unevaluatedItems") if keyword in schema
            )

    def _too_often(self, looks: _Looks) -> str:
        by = "".join(f", most often by {self._pointer(most)}" for most, _ in looks.by_schema.most_common(1))
        return (
            f"one value ({looks.path}) could be checked more than {EVALUATIONS_MAX} times{by}: "
            "refer to it fewer times, in no circle by two ways"
        )

    def _pointer(self, wanted: int) -> str:
        ahead: list[tuple[str, Any]] = [("#", self._root)]
        while id(ahead[-1][1]) != wanted:
            pointer, value = ahead.pop()
            inside = (
                value.items()
                if isinstance(value, dict)
                else enumerate(value)
                if isinstance(value, list)
                else ()
            )
            ahead.extend((f"{pointer}/{key}"[:PATH_CHARACTERS_MAX], inner) for key, inner in inside)
        return ahead[-1][0]


def _of_any_name(schema: dict[str, Any], name: str | None = None) -> list[Any]:
    """What a schema says of the member called `name` without naming it; None: of one that is nowhere named."""
    # Its pattern is tried on each name, also when it then says a mere true or false.
    found = list(_mapping(schema, "patternProperties").values())
    if name not in _mapping(schema, "properties"):
        rest = "additionalProperties" if "additionalProperties" in schema else "unevaluatedProperties"
        if isinstance(schema.get(rest), dict):
            found.append(schema[rest])
    return found


def _text(value: Any, keyword: str) -> str:
    text = value.get(keyword) if isinstance(value, dict) else None
    return text if isinstance(text, str) else ""


def _mapping(schema: dict[str, Any], keyword: str) -> dict[str, Any]:
    value = schema.get(keyword)
    return value if isinstance(value, dict) else {}


def _leading(schema: dict[str, Any]) -> list[Any]:
    """What is said of the first elements one by one; older drafts say it with `items`."""
    return next((schema[key] for key in ("prefixItems", "items") if isinstance(schema.get(key), list)), [])
