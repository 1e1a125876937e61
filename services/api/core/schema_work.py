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

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from services.api.core.schema_cost import faults_of, positions_of, weight_of
from services.api.core.schema_document import PATH_CHARACTERS_MAX, Beyond, Document
from windlass.definition.limits import DEPTH_MAX

# Of one value. A million looks take 6 to 20 ms, when none of them compares much, and the largest input has some 130,000
# values: what a whole input costs is known when it comes, and its reader's to refuse.
EVALUATIONS_MAX: Final = 2_000
# Of one value, in looks: a millisecond, so that some hundred such values can be checked in any case.
WEIGHT_MAX: Final = 100_000
# How long the walk itself may be: some times the schema's own size.
STEPS_MIN: Final = 10_000
STEPS_PER_VALUE: Final = 10
STEPS_MAX: Final = 500_000

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
    except Beyond as beyond:
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
        self._document = Document(schema)
        self._steps = min(STEPS_MIN + STEPS_PER_VALUE * self._document.values, STEPS_MAX)
        self._schemas: dict[int, dict[str, Any]] = {}
        self._most = self._heaviest = self._most_positions = self._most_faults = 0
        self._weights: dict[int, _Weights] = {}

    def work(self) -> Work:
        places = [_Place("input", [(self._document.root, 1)])]
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
            self._most,
            self._heaviest,
            self._most_positions,
            self._most_faults,
            self._document.has_alternatives,
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
            raise Beyond(
                f"one value ({looks.path}) could be compared with too much: shorten enum and const, "
                "or look at them fewer times"
            )

    def _refuse_many(self, looks: _Looks) -> None:
        if looks.total > EVALUATIONS_MAX:
            raise Beyond(self._too_often(looks))

    def _step(self, steps: int = 1) -> None:
        self._steps -= steps
        if self._steps <= 0:
            raise Beyond("its subschemas meet in too many combinations: describe each property once")

    def _in_place(self, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """What else applies to the same value, by the keyword that says so."""
        for keyword, value in schema.items():
            if keyword in _REFERENCES and isinstance(value, str):
                yield from ((keyword, target) for target in self._document.targets(value))
            elif keyword in _LISTS and isinstance(value, list):
                yield from ((keyword, inner) for inner in value)
            elif keyword in _MAPPINGS and isinstance(value, dict):
                yield from ((keyword, inner) for inner in value.values() if not isinstance(inner, list))
            elif keyword in _SINGLES:
                yield keyword, value

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
            if not self._document.is_of_newest_draft and isinstance(items, dict):
                yield items
        elif isinstance(items, dict | bool):
            yield items
        else:
            yield from (
                schema[keyword] for keyword in ("additionalItems", "unevaluatedItems") if keyword in schema
            )

    def _too_often(self, looks: _Looks) -> str:
        by = "".join(
            f", most often by {self._document.pointer(most)}" for most, _ in looks.by_schema.most_common(1)
        )
        return (
            f"one value ({looks.path}) could be checked more than {EVALUATIONS_MAX} times{by}: "
            "refer to it fewer times, in no circle by two ways"
        )


def _of_any_name(schema: dict[str, Any], name: str | None = None) -> list[Any]:
    """What a schema says of the member called `name` without naming it; None: of one that is nowhere named."""
    # Its pattern is tried on each name, also when it then says a mere true or false.
    found = list(_mapping(schema, "patternProperties").values())
    if name not in _mapping(schema, "properties"):
        rest = "additionalProperties" if "additionalProperties" in schema else "unevaluatedProperties"
        if isinstance(schema.get(rest), dict):
            found.append(schema[rest])
    return found


def _mapping(schema: dict[str, Any], keyword: str) -> dict[str, Any]:
    value = schema.get(keyword)
    return value if isinstance(value, dict) else {}


def _leading(schema: dict[str, Any]) -> list[Any]:
    """What is said of the first elements one by one; older drafts say it with `items`."""
    return next((schema[key] for key in ("prefixItems", "items") if isinstance(schema.get(key), list)), [])
