"""http.request@1 makes one HTTP request; its output is the answer.

config: method (GET), url, headers{}, query{}, body, timeout. A text body is sent unchanged, anything else as JSON, or
as a form when the content-type says so; `json` is a body that is always JSON. Output: {status, headers, body}; the body
is parsed when the answer is JSON. 5xx, 408, 425, 429 and network faults are TRANSIENT (Retry-After counts, in seconds
or as a date), other 4xx PERMANENT. Every request carries `Idempotency-Key: <effect key>`, so that the server can
recognise a second attempt. The host and port of the url are the target, whose circuit may be open (docs/circuits.md).

Hazards: only public addresses are called, and those that the operator allows (`guarded_sockets.py`). A redirect to
another origin gets no credentials. Errors and spans name the host and nothing else of the address, because a user name,
a path or a query may be a secret; what a server says is shown without what it was sent (`sent_secrets.py`).
How much work it is to take an answer apart (headers, chunks, compression) is for the server to choose, so requests have
an event loop and a thread of their own. An answer over the limit fails, and one that is not small is read in a child
process, so that it fills neither the memory nor the time of the runner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cache
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import orjson

from services.chassis.telemetry.logs import logger
from services.chassis.telemetry.tracing import AttributeValue, TraceContext, emit_span, parse_traceparent
from services.rendering.bodies import SMALL_BYTES_MAX, body_of, codec_of
from services.runner.app.modules.flow import seconds_of
from services.runner.app.modules.guarded_sockets import AddressDenied, GuardedSockets
from services.runner.app.modules.sent_secrets import SentSecrets
from services.runner.core.egress import Egress
from services.runner.core.failures import FailureClass, of_status, seconds_asked
from services.runner.core.job import EncodedOutput
from windlass.definition.targets import http_target
from windlass.sdk import Context, Module, ModuleError, ModuleTimeout, PermanentError, TransientError

if TYPE_CHECKING:
    import aiohttp

log = logger(__name__)

# They warn of headers that strangers sent, and repeat these.
for _name in ("aiohttp.client", "aiohttp.internal"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

Reader = Callable[[bytes, str], Awaitable[Any]]
ReadLarge = Callable[[bytes, str], bytes]

RESOLVERS = 64
ANSWER_BYTES_MAX = 8 * 1024 * 1024
REDIRECTS_MAX = 5
# How an operator opens networks.
ALLOW_NET = "windlass up --allow-net, WINDLASS_RUNNER_ALLOW_NET"
FORM = "application/x-www-form-urlencoded"
_SECONDS = 30.0
# The only headers that go along to another origin: what is sent, and what is wanted. Any other may hold a secret.
_CARRIED = {
    *("accept", "accept-encoding", "accept-language", "content-encoding", "content-length", "content-type"),
    *("host", "transfer-encoding", "user-agent"),
}


@contextlib.contextmanager
def _traced(
    span: TraceContext | None, parent: TraceContext | None, method: str, host: str
) -> Iterator[dict[str, AttributeValue]]:
    """Record the span of a request, which gets the attributes that the block adds."""
    attributes: dict[str, AttributeValue] = {"http.request.method": method, "server.address": host}
    start_ns, error = time.time_ns(), ""
    try:
        yield attributes
    except BaseException as raised:
        error = type(raised).__name__
        raise
    finally:
        if span is not None:
            emit_span(
                f"http {method}",
                span,
                parent=parent,
                start_ns=start_ns,
                end_ns=time.time_ns(),
                attributes=attributes,
                error=error,
                kind="client",
            )


@cache
def _loop_of_requests() -> asyncio.AbstractEventLoop:
    """Made at the first request, for all requests of the process. Its thread ends with the process."""
    loop = asyncio.new_event_loop()
    # Names are resolved in these. One whose servers do not answer holds its thread for some seconds.
    loop.set_default_executor(ThreadPoolExecutor(RESOLVERS, thread_name_prefix="names"))
    Thread(target=loop.run_forever, name="requests", daemon=True).start()
    return loop


def module(egress: Egress, read_large: ReadLarge) -> Module:
    """The module, for a runner that may call so much. `read_large` is `bodies.body_as_json` in another process."""
    # A request waits here while the body of another is read.
    thread = ThreadPoolExecutor(1, thread_name_prefix="responses")

    async def body(raw: bytes, content_type: str) -> Any:
        if len(raw) <= SMALL_BYTES_MAX:
            return body_of(raw, content_type)
        loop = asyncio.get_running_loop()
        try:
            return orjson.Fragment(await loop.run_in_executor(thread, read_large, raw, content_type))
        except PermanentError:
            fault = "the answer is nested too deep, or takes too much memory or time to be read"
            raise PermanentError(fault, type="HTTP_ANSWER_TOO_LARGE") from None

    async def request(ctx: Context, _inputs: Any, config: Any) -> Any:
        requested = _request(ctx, config, GuardedSockets(egress), body)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(requested, _loop_of_requests()))

    return Module("http.request@1", request, idempotent=False, is_async=True, inline=False)


async def _request(ctx: Context, config: Any, sockets: GuardedSockets, read: Reader) -> dict[str, Any] | EncodedOutput:
    # Imported at the first request: it costs a third of a runner's start, and many runners never need it.
    import aiohttp

    url = config.get("url")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise PermanentError("config.url must be an http:// or https:// address", type="INVALID_CONFIG")
    host = _host(url)
    if name := http_target(url):
        ctx.target(name)
    try:
        return await _answer(ctx, config, url, host, sockets, read)
    except TimeoutError:
        raise ModuleTimeout(f"no answer from {host} in time", type="HTTP_TIMEOUT") from None
    except aiohttp.TooManyRedirects:
        raise PermanentError(f"{host} redirects more than {REDIRECTS_MAX} times", type="HTTP_INVALID") from None
    except aiohttp.NonHttpUrlClientError:
        raise PermanentError(f"{host} redirects to something that is not http", type="HTTP_INVALID") from None
    except aiohttp.ClientConnectorError as error:
        if isinstance(error.os_error, AddressDenied):
            raise _denied(ctx, error.host, error.os_error) from None
        raise TransientError(f"no connection to {error.host}: {type(error).__name__}", type="HTTP_NETWORK") from None
    except (ValueError, TypeError) as error:
        # The texts of these errors repeat what was wrong. ValueError: also an invalid address (aiohttp.InvalidURL).
        ctx.called = ""  # nothing was sent
        what = f"the request to {host} cannot be made: its address, method or headers are malformed"
        raise PermanentError(f"{what} ({type(error).__name__})", type="HTTP_INVALID") from None
    except aiohttp.ClientError as error:
        raise TransientError(f"no whole answer from {host}: {type(error).__name__}", type="HTTP_NETWORK") from None


def _host(url: str) -> str:
    """The host of an address, for people. An address that is malformed may have something else in its place."""
    try:
        parts = urlsplit(url)
        return parts.hostname if parts.hostname and parts.port != 0 else "the host"
    except ValueError:
        return "the host"


async def _answer(
    ctx: Context, config: Any, url: str, host: str, sockets: GuardedSockets, read: Reader
) -> dict[str, Any] | EncodedOutput:
    import aiohttp
    from yarl import URL

    method = str(config.get("method", "GET")).upper()
    own_headers = {str(k): str(v) for k, v in config.get("headers", {}).items()}
    headers = {"Idempotency-Key": ctx.effect_key, **own_headers}
    parent = parse_traceparent(ctx.traceparent)
    span = None if parent is None else parent.child()
    if span is not None:
        headers.setdefault("traceparent", span.header())
    target = URL(url).extend_query({str(k): str(v) for k, v in config.get("query", {}).items()})
    body = _body(config, headers)
    timeout = aiohttp.ClientTimeout(total=seconds_of(config.get("timeout", _SECONDS)))
    connector = aiohttp.TCPConnector(socket_factory=sockets, force_close=True)
    with _traced(span, parent, method, host) as attributes:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as session,
            session.request(
                method,
                target,
                headers=headers,
                data=body,
                max_redirects=REDIRECTS_MAX + 1,  # aiohttp refuses the one that it counts to
                middlewares=(_Headers(),),
            ) as answer,
        ):
            attributes["http.response.status_code"] = answer.status
            raw = await _bounded_body(answer, host)
            if (failure_class := of_status(answer.status)) is not None:
                said = SentSecrets(target, own_headers).withheld_from(raw, codec_of(_content_type(answer)))
                raise _error(answer, failure_class, f"{host} answered HTTP {answer.status}: {said}")
    output = {
        "status": answer.status,
        # Bytes that are no UTF-8 come as lone surrogates, which JSON cannot hold.
        "headers": {k.lower(): v.encode("utf-8", "replace").decode() for k, v in answer.headers.items()},
        "body": await read(raw, _content_type(answer)),
    }
    # The child has checked a large body, and nothing else of the output can be wrong.
    return EncodedOutput(orjson.dumps(output)) if isinstance(output["body"], orjson.Fragment) else output


class _Headers:
    """Keeps the headers of a request from other origins, and from where these redirect to: they could choose what is
    done at home with its credentials. aiohttp calls this before every request that it sends."""

    def __init__(self) -> None:
        self._home: Any = None
        self._has_left = False

    async def __call__(self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        origin = request.url.origin()
        self._home = self._home or origin
        self._has_left = self._has_left or origin != self._home
        if self._has_left:
            for name in {name.lower() for name in request.headers} - _CARRIED:
                request.headers.popall(name)
        return await send(request)


def _denied(ctx: Context, host: str, denied: AddressDenied) -> PermanentError:
    ctx.called = ""  # nothing was sent
    # Only the operator is told what the name resolves to.
    log.info("address refused", run_id=ctx.run_id, host=host, address=denied.address)
    return PermanentError(
        f"{host} has no address that may be called: only public ones are, and the networks that the operator allows"
        f" ({ALLOW_NET})",
        type="ADDRESS_DENIED",
    )


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


def _error(answer: aiohttp.ClientResponse, failure_class: FailureClass, message: str) -> ModuleError:
    kind = f"HTTP_{answer.status}"
    if failure_class is FailureClass.PERMANENT:
        return PermanentError(message, type=kind)
    return TransientError(message, type=kind, retry_after=_retry_after(answer))


def _content_type(answer: aiohttp.ClientResponse) -> str:
    return answer.headers.get("Content-Type", "")


async def _bounded_body(answer: aiohttp.ClientResponse, host: str) -> bytes:
    try:
        await answer.content.readexactly(ANSWER_BYTES_MAX + 1)
    except asyncio.IncompleteReadError as whole:
        return whole.partial
    raise PermanentError(f"the answer of {host} is over {ANSWER_BYTES_MAX} bytes", type="HTTP_ANSWER_TOO_LARGE")


def _retry_after(answer: aiohttp.ClientResponse) -> float | None:
    headers = answer.headers
    return seconds_asked(headers.get("Retry-After", ""), headers.get("Date", ""), datetime.now(UTC))
