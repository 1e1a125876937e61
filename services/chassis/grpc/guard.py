"""What stands before every handler, in one pass: who calls, may he, is it well formed, how did it end.

One wrapper per method, made when the method is registered, instead of a chain of interceptors made anew for
each call (each of those costs a unary call several times what all of this does). Order matters: the
identity is settled before the request is read, so that nobody without a key learns what a well-formed
request is; errors are mapped outermost, so that nothing of ours gets out.
Every handler is registered as one of a stream of requests, also when it reads but one: gRPC calls the others when the
request is there, and who never sends it would have calls of every method without being asked for a key.
Hazard: cancellation (the caller has gone) passes through untouched; it is no failure of the handler.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import grpc
from google.rpc import status_pb2

from services.chassis.grpc.errors import Refusal, status_code, status_of, trailers_of
from services.chassis.grpc.validation import decode, prepare, validate
from services.chassis.identity.callers import (
    ANONYMOUS,
    CallerKind,
    Identity,
    KeyReader,
    Rule,
    ServiceCredential,
    set_caller,
)
from services.chassis.process.naming import SERVICE_CREDENTIAL_KEY
from services.chassis.telemetry.logs import logger
from services.chassis.telemetry.metrics import counter, gauge, histogram
from services.chassis.telemetry.tracing import (
    TRACEPARENT,
    AttributeValue,
    Sampler,
    TraceContext,
    emit_span,
    new_trace,
    parse_traceparent,
    service_name,
    set_present_trace,
    set_span_notes,
    tracing_is_on,
)

log = logger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_BEARER: Final = "bearer "
# Of a request without a key: strangers have the parser read no more than this.
OPEN_BYTES_MAX: Final = 64 * 1024
# Calls of one method that needs no key, streams and others: more than anyone needs, and far from all that a server
# serves at once.
OPEN_CALLS_MAX: Final = 1_000

_handled = counter("grpc_server_handled_total", "Finished RPCs.", ["method", "code"])
_seconds = histogram("grpc_server_handling_seconds", "How long RPCs took.", ["method"])
_streams = gauge("grpc_server_streams", "Streams that are open.", ["method"])


class _Served(NamedTuple):
    """The span of one RPC: its own context, its caller's if that brought one, and what the handler notes on it."""

    own: TraceContext
    parent: TraceContext | None
    notes: dict[str, AttributeValue]


class _Gauges:
    """The metric children of one method, looked up once."""

    def __init__(self, method: str) -> None:
        self._method = method
        self._by_code: dict[str, Any] = {}
        self._seconds = _seconds.labels(method)
        self.streams = _streams.labels(method)

    def ended(self, code: str) -> None:
        child = self._by_code.get(code)
        if child is None:
            child = self._by_code[code] = _handled.labels(self._method, code)
        child.inc()

    def took(self, seconds: float) -> None:
        self._seconds.observe(seconds)


class _Places:
    """Of the calls of one open method. One is taken until gRPC is done with its call: whoever does not read the answer
    keeps the call open after its handler.
    """

    def __init__(self, method: str) -> None:
        self._method = method
        self._taken = 0

    def take(self, context: Any) -> None:
        if self._taken >= OPEN_CALLS_MAX:
            raise Refusal("OPEN_CALLS_EXCEEDED", f"{OPEN_CALLS_MAX} calls of {self._method} are open already")
        self._taken += 1
        context.add_done_callback(self._give_back)

    def _give_back(self, _: Any) -> None:
        self._taken -= 1


class Guard:
    def __init__(
        self,
        rules: Mapping[str, Rule],
        *,
        keys: KeyReader | None = None,
        credential: ServiceCredential | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        self._rules = dict(rules)
        self._keys = keys
        self._credential = credential
        self._sampler = sampler

    def with_rules(self, rules: Mapping[str, Rule]) -> Guard:
        """The same callers under other rules."""
        return Guard(rules, keys=self._keys, credential=self._credential)

    def rule_of(self, method: str) -> Rule:
        rule = self._rules.get(method)
        if rule is None:
            raise LookupError(f"{method} has no rule: say who may call it, or do not serve it")
        return rule

    def wrap(
        self, method: str, handler: grpc.RpcMethodHandler[Any, Any], *, request_bytes_max: int
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """The same handler behind this guard."""
        rule = self.rule_of(method)
        behaviour = _behaviour(handler)
        if not (inspect.iscoroutinefunction(behaviour) or inspect.isasyncgenfunction(behaviour)):
            raise TypeError(f"{method} is not implemented: its servicer method is not async")
        assert handler.request_deserializer is not None
        kind = getattr(handler.request_deserializer, "__self__", None)
        if not handler.request_streaming and kind is not None:
            prepare(kind.DESCRIPTOR)
        if rule.is_open:
            request_bytes_max = min(request_bytes_max, OPEN_BYTES_MAX)
        decoded = functools.partial(
            decode,
            handler.request_deserializer,
            request_bytes_max,
            refuses_nul=not rule.judges_text,
            items_max=rule.items_max,
        )
        if handler.request_streaming or handler.response_streaming:
            return self._wrap_stream(method, handler, decoded, rule)
        return grpc.stream_unary_rpc_method_handler(
            self._unary(method, behaviour, decoded, rule),
            request_deserializer=None,
            response_serializer=handler.response_serializer,
        )

    def _unary(
        self, method: str, behaviour: Any, decoded: Callable[[bytes], Any], rule: Rule
    ) -> Callable[[Any, Context], Awaitable[Any]]:
        gauges = _Gauges(method)
        seconds_max = rule.seconds_max
        places = _Places(method) if rule.is_open else None

        async def call(_: Any, context: Context) -> Any:
            start = time.perf_counter()
            code, trace, late = "OK", None, None
            try:
                if places is not None:
                    places.take(context)
                trace = await self._admit(context, method, rule)
                has_time = _has_time(context, seconds_max)
                if has_time:
                    raw = await _raw_request(context)
                else:
                    assert seconds_max is not None
                    # One for both: who sends the request at the last moment has no second time for its answer.
                    deadline = asyncio.get_running_loop().time() + seconds_max
                    late = asyncio.create_task(_raw_request(context))
                    raw = await _within(late, seconds_max)
                request = decoded(raw)
                validate(request)
                if has_time:
                    return await behaviour(request, context)
                async with asyncio.timeout_at(deadline):
                    return await behaviour(request, context)
            except BaseException as failure:
                code, status = _outcome(failure, method)
                if status is None:
                    raise
                await _abort(context, status)
            finally:
                took = time.perf_counter() - start
                gauges.ended(code)
                gauges.took(took)
                if late is not None:
                    late.cancel()
                if trace is not None:
                    _emit_served(method, trace, took, code)

        return call

    def _wrap_stream(
        self,
        method: str,
        handler: grpc.RpcMethodHandler[Any, Any],
        decoded: Callable[[bytes], Any],
        rule: Rule,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        deserializer, prepare = _stream_input(handler, decoded)
        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        wrapped = self._stream(method, _behaviour(handler), prepare, rule)
        return make(
            wrapped,
            request_deserializer=deserializer,
            response_serializer=handler.response_serializer,
        )

    def _stream(
        self, method: str, behaviour: Any, prepare: Callable[[Any, Context], Awaitable[Any]], rule: Rule
    ) -> Callable[[Any, Context], Any]:
        gauges = _Gauges(method)

        async def served(request: Any, context: Context) -> Any:
            await self._admit(context, method, rule)
            return await behaviour(await prepare(request, context), context)

        async def generated(request: Any, context: Context) -> None:
            await self._admit(context, method, rule)
            # Closed here and now when the caller goes in the middle of a write, not when it is collected.
            asked = await prepare(request, context)
            async with contextlib.aclosing(behaviour(asked, context)) as responses:
                async for response in responses:
                    await context.write(response)

        work = generated if inspect.isasyncgenfunction(behaviour) else served
        seconds_max = rule.seconds_max
        places = _Places(method) if rule.is_open else None

        async def stream(request: Any, context: Context) -> Any:
            code, late = "OK", None
            gauges.streams.inc()
            try:
                if places is not None:
                    places.take(context)
                if _has_time(context, seconds_max):
                    return await work(request, context)
                late = asyncio.create_task(work(request, context))
                return await _within(late, seconds_max)
            except BaseException as failure:
                if _is_unheard(failure, context):
                    log.info("a stream ended under its handler", method=method, error=repr(failure))
                    code = "CANCELLED"
                    return None
                code, status = _outcome(failure, method)
                if status is None:
                    raise
                await _abort(context, status)
            finally:
                gauges.streams.dec()
                gauges.ended(code)
                if late is not None:
                    late.cancel()

        return stream

    async def _admit(self, context: Context, method: str, rule: Rule) -> _Served | None:
        """Settle who calls; refuse who may not. The context of the server's span, if there is to be one."""
        key = service = traceparent = None
        for name, value in context.invocation_metadata() or ():
            if name == "authorization":
                key = str(value)
            elif name == SERVICE_CREDENTIAL_KEY:
                service = str(value)
            elif name == TRACEPARENT:
                traceparent = str(value)
        if rule.is_open:
            identity = ANONYMOUS
        else:
            identity = await self._identify(context, key, service)
            if not rule.allows(identity):
                raise _not_allowed(method, rule, identity)
        set_caller(identity)
        if traceparent is None and not rule.is_traced:
            return None
        return self._trace(traceparent, rule)

    async def _identify(self, context: Context, key: str | None, service: str | None) -> Identity:
        if key is not None:
            if self._keys is None or key[: len(_BEARER)].lower() != _BEARER:
                raise Refusal("KEY_INVALID", "the authorization is no key that this service knows")
            return await self._keys.identify(key[len(_BEARER) :].strip())
        if service is not None:
            name = None if self._credential is None else self._credential.verify(service)
            if name is None:
                raise Refusal("KEY_INVALID", "the service credential does not fit")
            return Identity(CallerKind.SERVICE, name)
        # Only a port that demands client certificates finds one here. Which port it is need not be known: where there
        # is such a port, no header is taken (config.py), so whoever comes by the public one beside it is no service.
        for common_name in context.auth_context().get("x509_common_name", ()):
            return Identity(CallerKind.SERVICE, common_name.decode("utf-8", "replace"))
        raise Refusal("KEY_MISSING", "send the metadata `authorization: Bearer <key>`")

    def _trace(self, traceparent: str | None, rule: Rule) -> _Served | None:
        """The span of this RPC; None when unsampled, though present_trace() knows the context then too."""
        incoming = None if traceparent is None else parse_traceparent(traceparent)
        if incoming is None:
            if not rule.is_traced:
                return None
            own = new_trace(False if self._sampler is None else self._sampler.take())
        else:
            own = incoming.child() if incoming.sampled else incoming
        set_present_trace(own)
        if not own.sampled or not tracing_is_on():
            return None
        notes: dict[str, AttributeValue] = {}
        set_span_notes(notes)
        return _Served(own, incoming, notes)


async def _within(work: asyncio.Task[Any], seconds_max: float | None) -> Any:
    """Its result, or TimeoutError. Nothing stops the work here: it may be in the middle of a read, and none is given up
    before its call has been ended.
    """
    done, _ = await asyncio.wait([work], timeout=seconds_max)
    if not done:
        raise TimeoutError
    return work.result()


def _outcome(failure: BaseException, method: str) -> tuple[str, status_pb2.Status | None]:
    """The code that is counted, and what the caller is told. None: the failure goes on as it is."""
    if isinstance(failure, grpc.aio.AbortError):
        # A library's handler that chose its own end.
        return "ABORTED_BY_HANDLER", None
    if not isinstance(failure, Exception):
        return "CANCELLED", None
    status = status_of(failure, where=method)
    return status_code(status).name, status


def _is_unheard(failure: BaseException, context: Any) -> bool:
    """Whether the other side has gone, so that there is nobody to tell of it."""
    is_ours = isinstance(failure, Exception) and not isinstance(failure, grpc.aio.AbortError)
    return is_ours and (context.cancelled() or context.done())


async def _abort(context: Context, status: status_pb2.Status) -> None:
    await context.abort(status_code(status), status.message, trailers_of(status))


def unknown_method(method: str) -> grpc.RpcMethodHandler[Any, Any]:
    """What answers a call of a method that nobody serves. Streaming both ways, as which every call may be served."""

    async def refuse(requests: Any, context: Context) -> None:
        refusal = Refusal("UNIMPLEMENTED", f"there is no method {method}", metadata={"method": method})
        await _abort(context, status_of(refusal))

    return grpc.stream_stream_rpc_method_handler(refuse)


def _behaviour(handler: grpc.RpcMethodHandler[Any, Any]) -> Any:
    return handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream


def _stream_input(
    handler: grpc.RpcMethodHandler[Any, Any], decoded: Callable[[bytes], Any]
) -> tuple[Callable[[bytes], Any] | None, Callable[[Any, Context], Awaitable[Any]]]:
    """Who decodes: gRPC message by message for a stream of requests, the guard for a single one."""

    async def all_of_them(requests: Any, context: Context) -> Any:
        return requests

    async def the_only_one(_: Any, context: Context) -> Any:
        request = decoded(await _raw_request(context))
        validate(request)
        return request

    return (decoded, all_of_them) if handler.request_streaming else (None, the_only_one)


async def _raw_request(context: Context) -> bytes:
    raw: Any = await context.read()
    if raw is grpc.aio.EOF:
        raise Refusal("INVALID_REQUEST", "the call ended without a request")
    return raw  # type: ignore[no-any-return]


def _has_time(context: Context, seconds_max: float | None) -> bool:
    """Whether the caller's own deadline, which gRPC enforces, already keeps this call inside the cap."""
    if seconds_max is None:
        return True
    remaining: float | None = context.time_remaining()  # None without a deadline, whatever its stubs say
    return remaining is not None and remaining <= seconds_max


def _not_allowed(method: str, rule: Rule, identity: Identity) -> Refusal:
    return Refusal(
        "ROLE_REQUIRED",
        f"{method} is for: {rule}",
        metadata={"method": method, "required": str(rule), "have": identity.grade},
    )


def _emit_served(method: str, span: _Served, took: float, code: str) -> None:
    end_ns = time.time_ns()
    emit_span(
        f"{service_name()}.{method.rpartition('/')[2]}",
        span.own,
        parent=span.parent,
        start_ns=end_ns - round(took * 1e9),
        end_ns=end_ns,
        attributes={"rpc.system": "grpc", "rpc.method": method, "rpc.grpc.status": code, **span.notes},
        error="" if code == "OK" else code,
        kind="server",
    )
