"""A JSON Schema as one document: its anchors, where its references lead, its patterns together, and how large it is.

Hazards: references are followed inside the document alone, and it is searched without knowing what is a schema and
what but looks like one: rather too much is found than too little.
"""

import re
from typing import Any, Final, NoReturn
from urllib.parse import unquote

from services.api.core.schema_cost import PATTERN_STATES_MAX, patterns_of, states_of

# Of a place or a subschema, in messages.
PATH_CHARACTERS_MAX: Final = 200
_DRAFT_4: Final = "draft-04"
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,6}")


class Beyond(Exception):
    """Too much, or beyond following: ends the walk; work_of makes an Excess of it."""


class Document:
    def __init__(self, root: Any) -> None:
        self.root = root
        self.values = 0
        self.has_alternatives = False
        self.is_of_newest_draft = True
        self._own = _text(root, "$id").removesuffix("#")
        self._is_of_draft_4 = _DRAFT_4 in _text(root, "$schema")
        self._anchors: dict[str, list[Any]] = {}
        self._followed: dict[str, list[Any]] = {}
        self._survey()

    def _survey(self) -> None:
        """Anchors, and what changes the meaning of references, wherever it stands."""
        patterns: set[str] = set()
        ahead = [self.root]
        while ahead:
            value = ahead.pop()
            self.values += 1
            if isinstance(value, list):
                ahead.extend(value)
            if not isinstance(value, dict):
                continue
            ahead.extend(value.values())
            self.has_alternatives |= "anyOf" in value or "oneOf" in value
            self.is_of_newest_draft &= "2020-12" in (_text(value, "$schema") or "2020-12")
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(name := value.get(keyword), str):
                    self._anchors.setdefault(name, []).append(value)
            self._note_identity(value)
            patterns.update(patterns_of(value))
        _refuse_large(patterns)

    def _note_identity(self, value: dict[str, Any]) -> None:
        """A base of its own would give the references below it another meaning; `#name` is but an anchor."""
        if value is self.root:
            return
        identity, draft = value.get("$id"), value.get("$schema")
        if isinstance(identity, str) and identity.startswith("#") and identity != "#":
            self._anchors.setdefault(identity[1:], []).append(value)
        elif isinstance(identity, str):
            self._refuse_base("$id", identity)
        if isinstance(draft, str) and _DRAFT_4 in draft:
            self._refuse_base("$schema", draft)
        if isinstance(value.get("id"), str) and self._is_of_draft_4:
            self._refuse_base("id", value["id"])

    def _refuse_base(self, keyword: str, value: str) -> NoReturn:
        raise Beyond(
            f"{keyword} {value[:100]!r} below the top: refer to subschemas by their place, #/$defs/NAME"
        )

    def targets(self, reference: str) -> list[Any]:
        """One, or all that have the name."""
        if reference not in self._followed:
            self._followed[reference] = self._led_to(reference)
        return self._followed[reference]

    def _led_to(self, reference: str) -> list[Any]:
        fragment = reference.removeprefix(self._own)
        name = unquote(fragment.removeprefix("#"))
        if fragment[:1] in ("", "#"):
            if not name:
                return [self.root]
            if name in self._anchors:
                return self._anchors[name]
            if name.startswith("/"):
                return [self._pointed_at(name, reference)]
        raise Beyond(f"the reference {reference[:100]!r} leads nowhere in this schema")

    def _pointed_at(self, pointer: str, reference: str) -> Any:
        value = self.root
        for token in pointer.split("/")[1:]:
            key = token.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and key in value:
                value = value[key]
            elif isinstance(value, list) and _INDEX.fullmatch(key) and int(key) < len(value):
                value = value[int(key)]
            else:
                raise Beyond(f"the reference {reference[:100]!r} leads nowhere in this schema")
        return value

    def pointer(self, wanted: int) -> str:
        """To a value of this identity."""
        ahead: list[tuple[str, Any]] = [("#", self.root)]
        while id(ahead[-1][1]) != wanted:
            pointer, value = ahead.pop()
            members = list(value.items()) if isinstance(value, dict) else []
            elements = list(enumerate(value)) if isinstance(value, list) else []
            ahead.extend(
                (f"{pointer}/{key}"[:PATH_CHARACTERS_MAX], inner) for key, inner in members + elements
            )
        return ahead[-1][0]


def _refuse_large(patterns: set[str]) -> None:
    states = {pattern: states_of(pattern) for pattern in patterns}
    if sum(states.values()) > PATTERN_STATES_MAX:
        # The same for whoever asks: a set has no order of its own.
        largest = max(patterns, key=lambda pattern: (states[pattern], pattern))
        raise Beyond(f"its patterns are too large, with {largest[:100]!r}: repeat less, use maxLength")


def _text(value: Any, keyword: str) -> str:
    text = value.get(keyword) if isinstance(value, dict) else None
    return text if isinstance(text, str) else ""
