"""What a request sends that may be a secret, and a server's words and the config without it.

Servers repeat what they were sent, most often in the text of an error. That text becomes the error of a run, which
stands in the journal, in rows and spans, and on screens. So whatever the config put into headers, the user and password
of the address and its query is taken out of it, in the ways in which servers write texts.

Hazard: a server that means to can write a secret in a way that nobody recognises.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from windlass.definition.targets import http_target

if TYPE_CHECKING:
    from yarl import URL

WITHHELD = "[withheld]"
SHOWN_CHARACTERS_MAX = 500
# Shorter ones are in every text, and hardly secrets.
_CHARACTERS_MIN = 4
# With more of them, nothing is shown.
_VALUES_MAX = 1_000
# They say what is sent and what is wanted.
_HARMLESS = {"accept", "accept-encoding", "accept-language", "content-encoding", "content-type", "user-agent"}


class SentSecrets:
    def __init__(self, url: URL, headers: Mapping[str, str]) -> None:
        """`url` with its query, and the headers of the config."""
        values = {*_in_address(url), *_in_headers(headers)}
        forms = {form for value in values for form in (value, *_as_json(value))}
        # The longest first, because one may be part of another.
        self._forms = sorted((form for form in forms if len(form) >= _CHARACTERS_MIN), key=len, reverse=True)

    def withheld_from(self, raw: bytes, codec: str) -> str:
        """The beginning of a text, with these secrets replaced."""
        if len(self._forms) > _VALUES_MAX:
            return WITHHELD
        # One that begins in what is shown is looked at as a whole; no charset has more than four bytes for a character.
        longest = len(self._forms[0]) if self._forms else 0
        text = raw[: 4 * (SHOWN_CHARACTERS_MAX + longest)].decode(codec, "replace")
        for form in self._forms:
            text = text.replace(form, WITHHELD)
        return text[:SHOWN_CHARACTERS_MAX]


def without_secrets(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a request as it is kept for people: with the names of headers and of the query alone."""
    shown = dict(config)
    if "url" in shown:
        shown["url"] = _shown_url(shown["url"])
    for part, harmless in (("headers", _HARMLESS), ("query", frozenset[str]())):
        if part in shown:
            shown[part] = {
                name: value if name.lower() in harmless else WITHHELD for name, value in dict(shown[part]).items()
            }
    return shown


def _shown_url(url: Any) -> str:
    """A malformed one is withheld, because anything in it may be a password."""
    try:
        parts = urlsplit(url)
        is_well_formed = bool(http_target(url))
    except (ValueError, TypeError, AttributeError):
        return WITHHELD
    if not is_well_formed:
        return WITHHELD
    _, at, host = parts.netloc.rpartition("@")
    query = WITHHELD if parts.query else ""
    shown: str = urlunsplit((parts.scheme, f"{WITHHELD}@{host}" if at else host, parts.path, query, ""))
    return shown


def _in_address(url: URL) -> Iterator[str]:
    yield from filter(None, (url.user, url.password, url.raw_user, url.raw_password))
    if url.user is not None:
        yield base64.b64encode(f"{url.user}:{url.password or ''}".encode("latin-1", "replace")).decode()
    for pair in url.raw_query_string.split("&"):
        name, equals, value = pair.partition("=")
        yield value if equals else name
    for name, value in url.query.items():
        yield value or name


def _in_headers(headers: Mapping[str, str]) -> Iterator[str]:
    for name, value in headers.items():
        if name.lower() not in _HARMLESS:
            # A scheme and a secret, or several parts with their names.
            yield value
            yield from value.replace(";", " ").replace(",", " ").replace("=", " ").split()


def _as_json(value: str) -> Iterator[str]:
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
