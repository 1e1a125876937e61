"""http.request@1 makes one HTTP request; its output is the answer.

config: method (GET), url, headers{}, query{}, body, timeout. A text body is sent unchanged, anything else as JSON, or
as a form when the content-type says so; `json` is a body that is always JSON. Output: {status, headers, body}; the body
is parsed when the answer is JSON. 5xx, 408, 425, 429 and network faults are TRANSIENT (Retry-After counts, in seconds
or as a date), other 4xx PERMANENT. Every request carries `Idempotency-Key: <effect key>`, so that the server can
recognise a second attempt.

Hazards: the address is checked at each connection, after the name was resolved, so that redirects and rebinding reach
no denied address. An answer over the limit fails, so that it does not fill the memory.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import orjson

from services.chassis.telemetry.tracing import emit_span, parse_traceparent
from services.runner.app.modules.flow import seconds_of
from services.runner.core.failures import ErrorClass, of_status
from services.runner.core.retry_after import seconds_asked
from windlass.sdk import Context, ModuleTimeout, PermanentError, Registry, TransientError
from windlass.sdk.registry import Returned

if TYPE_CHECKING:
    import aiohttp

BUILT_IN = Registry()

ANSWER_BYTES_MAX = 8 * 1024 * 1024
REDIRECTS_MAX = 5
FORM = "application/x-www-form-urlencoded"
_SECONDS = 30.0

# Addresses of cloud metadata, which no workflow needs.
DENIED = tuple(ipaddress.ip_network(net) for net in ("169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128"))


class _Denied(Exception):
    """No node may call the resolved address."""


def _guarded_socket(info: Any) -> socket.socket:
    family, kind, protocol, _, address = info
    target = ipaddress.ip_address(address[0].split("%")[0])
    mapped = getattr(target, "ipv4_mapped", None)
    if any((mapped or target) in network for network in DENIED):
        raise _Denied(str(target))
    return socket.socket(family=family, type=kind, proto=protocol)


class _TracedCall:
    """The span of a request, below its run's. It names the host only, because paths and queries may hold secrets."""

    def __init__(self, traceparent: str, method: str, url: str) -> None:
        self.method = method
        self.status = 0
        self._host = _host(url)
        self._parent = parse_traceparent(traceparent)
        self._own = None if self._parent is None else self._parent.child()
        # Sent with the request.
        self.traceparent = "" if self._own is None else self._own.header()

    async def __aenter__(self) -> None:
        self._start_ns = time.time_ns()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._own is None:
            return
        status = {"http.response.status_code": self.status} if self.status else {}
        emit_span(
            f"http {self.method}",
            self._own,
            parent=self._parent,
            start_ns=self._start_ns,
            end_ns=time.time_ns(),
            attributes={"http.request.method": self.method, "server.address": self._host, **status},
            error="" if kind is None else kind.__name__,
            kind="client",
        )


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:  # the request itself refuses it with a better message
        return ""


@BUILT_IN.declare("http.request@1")
async def http_request(ctx: Context, _inputs: Any, config: Any) -> Returned:
    # Imported at the first request: it costs a third of a runner's start, and many runners never need it.
    import aiohttp

    url = config.get("url")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise PermanentError("config.url must be an http:// or https:// address", type="INVALID_CONFIG")
    headers = {"Idempotency-Key": ctx.effect_key, **{str(k): str(v) for k, v in config.get("headers", {}).items()}}
    call = _TracedCall(ctx.traceparent, str(config.get("method", "GET")).upper(), url)
    if call.traceparent:
        headers.setdefault("traceparent", call.traceparent)
    body = _body(config, headers)
    timeout = aiohttp.ClientTimeout(total=seconds_of(config.get("timeout", _SECONDS)))
    connector = aiohttp.TCPConnector(socket_factory=_guarded_socket, force_close=True)
    try:
        async with (
            call,
            aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as session,
            session.request(
                call.method,
                url,
                headers=headers,
                params={str(k): str(v) for k, v in config.get("query", {}).items()} or None,
                data=body,
                max_redirects=REDIRECTS_MAX,
            ) as answer,
        ):
            call.status = answer.status
            return await _output(answer)
    except TimeoutError:
        raise ModuleTimeout(f"no answer from {url} in time", type="HTTP_TIMEOUT") from None
    except _Denied as denied:
        raise PermanentError(f"the address {denied} may not be called", type="ADDRESS_DENIED") from None
    except (aiohttp.InvalidURL, aiohttp.TooManyRedirects) as error:
        raise PermanentError(f"{type(error).__name__}: {url}", type="HTTP_INVALID") from None
    except aiohttp.ClientError as error:
        raise TransientError(f"{type(error).__name__} from {url}", type="HTTP_NETWORK") from None


def _body(config: Any, headers: dict[str, str]) -> bytes | None:
    """The bytes to send. Sets the content-type unless the config has one."""
    key = "body" if config.get("json") is None else "json"
    body = config.get(key)
    if body is None:
        return None
    name = next((name for name in headers if name.lower() == "content-type"), "Content-Type")
    if isinstance(body, str) and key == "body":
        headers.setdefault(name, "text/plain; charset=utf-8")
        return body.encode()
    if isinstance(body, dict) and headers.get(name, "").lower().startswith(FORM):
        return urlencode({k: v if isinstance(v, str) else orjson.dumps(v) for k, v in body.items()}).encode()
    headers.setdefault(name, "application/json")
    return orjson.dumps(body)


async def _output(answer: aiohttp.ClientResponse) -> Returned:
    body = await _bounded_body(answer)
    error_class = of_status(answer.status)
    if error_class is not None:
        message = f"HTTP {answer.status}: {body[:500].decode('utf-8', 'replace')}"
        kind = f"HTTP_{answer.status}"
        if error_class is ErrorClass.PERMANENT:
            raise PermanentError(message, type=kind)
        raise TransientError(message, type=kind, retry_after=_retry_after(answer))
    return {
        "status": answer.status,
        # Bytes that are no UTF-8 come as lone surrogates, which JSON cannot hold.
        "headers": {k.lower(): v.encode("utf-8", "replace").decode() for k, v in answer.headers.items()},
        "body": _parsed(answer, body),
    }


def _parsed(answer: aiohttp.ClientResponse, body: bytes) -> Any:
    if answer.content_type.endswith("json"):
        with contextlib.suppress(orjson.JSONDecodeError):
            return orjson.loads(body)
    return body.decode(answer.charset or "utf-8", "replace")


async def _bounded_body(answer: aiohttp.ClientResponse) -> bytes:
    chunks: list[bytes] = []
    size_bytes = 0
    async for chunk in answer.content.iter_chunked(65536):
        size_bytes += len(chunk)
        if size_bytes > ANSWER_BYTES_MAX:
            raise PermanentError(f"the answer is over {ANSWER_BYTES_MAX} bytes", type="HTTP_ANSWER_TOO_LARGE")
        chunks.append(chunk)
    return b"".join(chunks)


def _retry_after(answer: aiohttp.ClientResponse) -> float | None:
    headers = answer.headers
    return seconds_asked(headers.get("Retry-After", ""), headers.get("Date", ""), datetime.now(UTC))
