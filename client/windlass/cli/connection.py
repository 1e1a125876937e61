"""How a command finds the api and proves who asks: options first, then the environment, then the context in use, then
the home of a local stack.

Hazard: a key is read from a file or the environment, never taken as an argument: command lines are public.

Hazard: the keys in a home open the stack of that home. They are sent to the apis of the stack that runs in it and to
nobody else, so an `--address` that was typed wrong does not get the ADMIN key of this machine. A killed stack leaves
its up.json behind, and other programs may use its ports by then. So the file counts only while the process that wrote
it holds the lock of the home.
"""

import contextlib
import inspect
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from windlass.cli import contexts
from windlass.cli.contexts import is_address
from windlass.cli.forms import FormOption, JsonOption, Show, chosen, show
from windlass.cli.invocation import DEFAULT_HOME, as_typed, program
from windlass.cli.output import say, visible

CALL_SECONDS = 30.0
# A repeat is harmless: every command that changes something carries a request id or is idempotent by nature.
TRIES = 5
TRY_AGAIN_SECONDS = 0.3
# Verbs that know homes only.
_OF_THIS_MACHINE = ("up", "down", "status")

HomeOption = Annotated[
    Path,
    typer.Option(
        "--home",
        help="The home of a local stack; by default that of the context in use, or .windlass.",
        envvar="WINDLASS_HOME",
    ),
]
AddressOption = Annotated[str | None, typer.Option("--address", help="HOST:PORT of an api.", envvar="WINDLASS_ADDRESS")]
KeyFileOption = Annotated[
    Path | None, typer.Option("--key-file", help="A file with the key. Or set WINDLASS_KEY to the key.")
]
AuthorityFileOption = Annotated[
    Path | None,
    typer.Option(
        "--authority-file",
        help="Call --address over TLS. An authority in this file must have signed its certificate.",
        envvar="WINDLASS_AUTHORITY_FILE",
    ),
]

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Any])


class Unusable(Exception):
    """No address or no key was found; the message says what to do."""

    exit_code = 1


class Mistyped(Unusable):
    """The words that were typed lack an address or a key."""

    exit_code = 2


@dataclass(frozen=True)
class Api:
    """The api that the options of a command select. The fields are these options."""

    home: HomeOption = DEFAULT_HOME
    address: AddressOption = None
    key_file: KeyFileOption = None
    authority_file: AuthorityFileOption = None

    @cached_property
    def target(self) -> str:
        if self.address is not None and not is_address(self.address):
            raise Mistyped(f"{self.address!r} is not HOST:PORT, like api.example.org:443")
        return self.address or _address_of(self.home)

    @cached_property
    def _is_own_stack(self) -> bool:
        """Whether the stack of the home is called. That stays so while this stack starts again. The home is not read
        for a caller who brings a key."""
        if self.address is None:
            return True
        is_key_given = self.key_file is not None or bool(os.environ.get("WINDLASS_KEY"))
        return not is_key_given and self.address in (_apis_of(self.home) or ())

    @cached_property
    def channel(self) -> Any:
        """The authority counts for --address only: the stack of a home speaks plain text on this machine."""
        import grpc

        # The stack of a home is on this machine. A proxy would read the key on its way there.
        options = [("grpc.enable_http_proxy", 0)] if self._is_own_stack else []
        if self.authority_file is None or self.address is None:
            return grpc.insecure_channel(self.target, options=options)
        try:
            authority = self.authority_file.read_bytes()
        except OSError as error:
            raise Unusable(f"cannot read the authority in {self.authority_file}: {error.strerror}") from None
        return grpc.secure_channel(self.target, grpc.ssl_channel_credentials(authority), options=options)

    def metadata(self, key: str = "admin") -> list[tuple[str, str]]:
        """With "" the call needs no key."""
        if not key:
            return []
        return [("authorization", f"Bearer {self._key(key)}")]

    def _key(self, name: str) -> str:
        """The key that was given. Without one: that of this name in the home, if the home's own stack is called."""
        if self.key_file is None and (given := os.environ.get("WINDLASS_KEY")):
            return _checked_key(given, "WINDLASS_KEY")
        if self.key_file is None and not self._is_own_stack:
            raise Mistyped(
                f"no key is given for {self.address}; name its file with --key-file, or set WINDLASS_KEY to the key\n"
                f"(the keys in {self.home} are for the stack of that home only)"
            )
        path = self.key_file or self.home / f"{name}.key"
        try:
            return _checked_key(path.read_text(errors="replace"), str(path))
        except OSError as error:
            raise Unusable(f"cannot read the key in {path}: {error.strerror}; name another with --key-file") from None

    def call(self, request: Any, *, key: str = "admin") -> Any:
        """The one RPC that takes this request, repeated while the api (or what it depends on) is away."""
        import grpc

        method, codecs = _method_of(request)
        callable_ = self.channel.unary_unary(method, **codecs)
        metadata = self.metadata(key)
        for attempt in range(1, TRIES + 1):
            try:
                return callable_(request, timeout=CALL_SECONDS, metadata=metadata)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE or attempt == TRIES:
                    raise
                time.sleep(TRY_AGAIN_SECONDS * attempt)
        raise AssertionError("the last try returns or raises")

    def stream(self, request: Any, *, seconds: float) -> Iterator[Any]:
        """The answers of the one RPC that takes this request and answers with a stream."""
        method, codecs = _method_of(request)
        answers = self.channel.unary_stream(method, **codecs)
        yield from answers(request, timeout=seconds, metadata=self.metadata())

    def whole(self, request: Any, *, key: str = "admin") -> Any:
        """All pages of a list as one answer. A page of large items is shorter than it was asked to be."""
        answer = self.call(request, key=key)
        while answer.next_page_token:
            request.page_token = answer.next_page_token
            more = self.call(request, key=key)
            answer.MergeFrom(more)
            answer.next_page_token = more.next_page_token
        return answer

    def typed(self, command: str) -> str:
        """`command` as it reaches the same stack from this shell, so that it works when it is copied."""
        if self.address is None:
            return as_typed(command, self.home)
        if not command.startswith("windlass ") or command.split()[1] in _OF_THIS_MACHINE:
            return command
        known: dict[str, Any] = contexts.current()
        if "WINDLASS_ADDRESS" in os.environ:
            known = {name: os.environ.get(f"WINDLASS_{name.upper()}") for name in ("address", "authority_file")}
        words = command.replace("windlass", program(), 1)
        for name in ("home", "address", "key_file", "authority_file"):
            value = getattr(self, name)
            if name == "home" and (value == DEFAULT_HOME or self.key_file is not None):
                continue  # the key is not from there
            if value is not None and str(value) != str(known.get(name)):
                words += f" --{name.replace('_', '-')} {shlex.quote(str(value))}"
        return words

    @contextlib.contextmanager
    def telling_errors(self) -> Iterator[None]:
        """Print an error inside the block, and end the command: with 2 for what was typed wrong, otherwise with 1."""
        try:
            yield
        except Unusable as error:
            say(str(error), err=True)
            raise typer.Exit(error.exit_code) from None
        except _rpc_error() as error:
            is_secure = self.authority_file is not None and self.address is not None
            _tell(error, self.typed, f"{self.target} over TLS" if is_secure else self.target)
            raise typer.Exit(1) from None
        finally:
            if "channel" in vars(self):
                self.channel.close()


def command(
    tree: typer.Typer, name: str | None = None, *, shows: Show | None = None, kind: type[TyperCommand] | None = None
) -> Callable[[CommandFunction], CommandFunction]:
    """Make a command of a function whose first parameter is the api. With `shows`, the command prints the function's
    answer: by `shows` for people, or in the form that was asked for. A function that prints by itself has a parameter
    `output_form`."""

    def registered(function: CommandFunction) -> CommandFunction:
        _, *own = inspect.signature(function).parameters.values()
        own = [each for each in own if each.name != "output_form"]
        has_form = "output_form" in inspect.signature(function).parameters
        # The default of an option is told from the same value that was typed.
        options = [each.replace(default=None) for each in inspect.signature(Api).parameters.values()]

        def called(**given: Any) -> None:
            api = _api_of({option.name: given.pop(option.name) for option in options})
            form = chosen(given.pop("output_form", None), as_json=given.pop("as_json", False))
            with api.telling_errors():
                answer = function(api, **given, **({"output_form": form} if has_form else {}))
                if shows is not None:
                    show(answer, form, shows)

        only = inspect.Parameter.KEYWORD_ONLY
        parameters = [each.replace(kind=only) for each in (*own, *options)]
        if shows is not None or has_form:
            parameters.append(inspect.Parameter("output_form", only, default=None, annotation=FormOption))
            parameters.append(inspect.Parameter("as_json", only, default=False, annotation=JsonOption))
        # Typer reads all of these.
        called.__name__, called.__doc__ = function.__name__, function.__doc__
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        tree.command(name, cls=kind)(called)
        return function

    return registered


def _api_of(given: dict[str, Any]) -> Api:
    """The api of these options. Where they do not say which stack is meant, the context in use does."""
    said = {name: value for name, value in given.items() if value is not None}
    if "home" in said or "address" in said:
        return Api(**said)
    context = contexts.current()
    if os.environ.get("WINDLASS_KEY"):
        context.pop("key_file", None)
    return Api(**{**context, **said})


def _method_of(request: Any) -> tuple[str, dict[str, Any]]:
    """The path of the RPC that takes the request, and how its messages are read and written."""
    from google.protobuf.message_factory import GetMessageClass

    services = request.DESCRIPTOR.file.services_by_name.values()
    methods = (method for service in services for method in service.methods)
    method = next(each for each in methods if each.input_type.full_name == request.DESCRIPTOR.full_name)
    codecs = {
        "request_serializer": type(request).SerializeToString,
        "response_deserializer": GetMessageClass(method.output_type).FromString,
    }
    return f"/{method.containing_service.full_name}/{method.name}", codecs


def _rpc_error() -> type[Exception]:
    """The errors of gRPC. It is not imported for this: a command that calls nobody does not need it."""
    return sys.modules["grpc"].RpcError if "grpc" in sys.modules else Unusable


def _address_of(home: Path) -> str:
    apis = _apis_of(home)
    if apis is None:
        raise Unusable(
            f"no stack runs in {home.absolute()}; start one with: {as_typed('windlass up', home)}\n"
            "or name an api with --address HOST:PORT"
        )
    if not apis:
        raise Unusable(f"no api runs in {home.absolute()}; see: {as_typed('windlass status', home)}")
    return apis[0]


def _apis_of(home: Path) -> list[str] | None:
    """The addresses of the apis of the stack that runs in the home. None: no stack runs there."""
    from deploy.local.home import Home

    try:
        found = json.loads((home / "up.json").read_text())
        # Read after the file, so that it is the file of this process and not of the one before.
        holder = Home(home).holder()
        if holder is None or found["pid"] != holder:
            return None
        return [str(each["grpc"]) for each in found["processes"] if each["service"] == "api"]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Unusable(f"cannot read {error.filename}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise Unusable(f"{home / 'up.json'} is damaged; see: {as_typed('windlass status', home)}") from None


def _checked_key(text: str, where: str) -> str:
    """A key as a header can bring it. The error does not repeat it."""
    key = text.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise Unusable(f"{where} has no key; a key is one line of letters, digits and signs")
    return key


def _tell(error: Any, typed: Callable[[str], str], target: str) -> None:
    """The message, the reason, each faulty field, and the command that helps, as it is typed here."""
    from google.rpc import error_details_pb2
    from grpc_status import rpc_status

    status = rpc_status.from_call(error)
    # An error without a status comes from gRPC itself: nobody answers.
    is_away = status is None and error.code().name == "UNAVAILABLE"
    said = error.details()
    if is_away:
        said = f"no api answers at {target} ({said.rpartition('last error: ')[2]})"
    say(visible(said), err=True)
    info, bad = _info_of(status), error_details_pb2.BadRequest()
    for detail in status.details if status is not None else ():
        detail.Unpack(bad)
    found = [f"{each.field}: {each.description or each.reason}" for each in bad.field_violations]
    # The message may say the only one already.
    for line in found if len(found) != 1 or found[0] not in said else ():
        say(visible(f"  {line}"), err=True)
    say(visible(f"reason: {info.reason or error.code().name}"), err=True)
    hint = info.metadata.get("try", "")
    # To describe the request is no help to whoever has typed a verb.
    if hint and not hint.startswith("grpcurl "):
        say(visible(f"try:    {typed(hint)}"), err=True)


def reason_of(status: Any) -> str:
    """The reason in a google.rpc.Status, like WORKFLOW_NOT_FOUND."""
    return str(_info_of(status).reason)


def _info_of(status: Any) -> Any:
    from google.rpc import error_details_pb2

    info = error_details_pb2.ErrorInfo()
    for detail in status.details if status is not None else ():
        detail.Unpack(info)
    return info
