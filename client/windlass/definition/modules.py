"""The modules that a node may name, and the branches that they take.

A bare name (`noop@1`) is a built-in module. A dotted one (`billing.charge@2`) is the user's own, and is known once a
runner has announced it.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from windlass.definition.config_schemas import CONFIG_SCHEMAS
from windlass.definition.faults import Fault
from windlass.definition.templates import is_template, texts_of

# The modules that the engine carries out without a runner.
CONTROL_MODULES: Final = frozenset(
    {"approval@1", "for_each@1", "join@1", "repeat@1", "sleep@1", "state.set@1", "sub_workflow@1", "wait_signal@1"}
)
# Its node starts an execution of another workflow and waits for its end.
SUB_WORKFLOW: Final = "sub_workflow@1"
# It sets the keys of the workflow's state that its inputs name.
STATE_SETTER: Final = "state.set@1"
FOR_EACH: Final = "for_each@1"
# A runner that does this module renders templates for control nodes, for outputs of workflows, and for runners that do
# not render.
RENDERER: Final = "transform@1"
NAME_CHARACTERS_MAX: Final = 128

_NAME: Final = re.compile(r"([a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*)(?:@([1-9][0-9]{0,5}))?")
# The names of built-in modules are ours in every version: http.request@2 is no user's module.
_OWN_FORBIDDEN: Final = frozenset(module.partition("@")[0] for module in CONFIG_SCHEMAS)


def module_faults(module: Any, path: str) -> Iterator[Fault]:
    """The faults of a module's name."""
    if not isinstance(module, str):
        yield Fault(path, "REQUIRED" if module is None else "WRONG_TYPE", "must name a module, like noop@1")
        return
    parts = _NAME.fullmatch(module) if len(module) <= NAME_CHARACTERS_MAX else None
    if parts is None:
        yield Fault(path, "MALFORMED_MODULE", "a module is named like noop@1 or billing.charge@2")
    elif parts[2] is None:
        yield Fault(path, "MODULE_VERSION_REQUIRED", f"say which version: {module}@1")
    elif module not in CONFIG_SCHEMAS and not is_own(module):
        known = ", ".join(sorted(CONFIG_SCHEMAS))
        yield Fault(path, "UNKNOWN_MODULE", f"there is no {module}; built in are {known}; your own have a dot")


def body_key(node_id: str) -> str:
    """The references of a loop's body have this key; no node can have this id."""
    return f"{node_id}.body"


def body_module_faults(loop: str, body: Mapping[str, Any], path: str) -> Iterator[Fault]:
    """The faults of the module that a loop does for each of its items. The items of a list may be children instead."""
    module, may_be_child = body.get("module"), loop == FOR_EACH
    if may_be_child and "workflow" in body:
        others = [key for key in ("module", "config") if key in body]
        for key in others:
            yield Fault(f"{path}.{key}", "UNKNOWN_FIELD", "the body names a workflow already")
    elif isinstance(module, str) and module in CONTROL_MODULES and not (may_be_child and module == SUB_WORKFLOW):
        message = f"{module} is no body of a loop; a body names a module of a runner"
        yield Fault(f"{path}.module", "UNSUPPORTED_MODULE", message)
    else:
        yield from module_faults(module, f"{path}.module")


def is_own(module: str) -> bool:
    """True for a user's own module, which a runner has to announce."""
    return "." in module and module.partition("@")[0] not in _OWN_FORBIDDEN


def form_of(node: Any) -> dict[str, Any] | None:
    """The JSON Schema that an approval's form has to fit. None: there is none, or it is rendered first."""
    if not isinstance(node, dict) or node.get("module") != "approval@1":
        return None
    config = node.get("config")
    form = config.get("form") if isinstance(config, dict) else None
    is_plain = isinstance(form, dict) and not any(is_template(text) for text, _ in texts_of(form, ""))
    return form if is_plain else None


def branches_of(node: Mapping[str, Any]) -> frozenset[str] | None:
    """The labels that edges from this node may name; None when only the run can tell."""
    module, config = node.get("module"), node.get("config", {})
    if module == "condition@1":
        return frozenset({"true", "false"})
    if module == "approval@1":
        return frozenset({"approved", "rejected"})
    if module == "switch@1":
        return _branches_of_switch(config)
    return frozenset() if isinstance(module, str) and module in CONFIG_SCHEMAS else None


def _branches_of_switch(config: Any) -> frozenset[str] | None:
    cases = config.get("cases") if isinstance(config, dict) else None
    if not isinstance(cases, list):
        return None  # this is another fault
    named = [case.get("branch") for case in cases if isinstance(case, dict)] + [config.get("default")]
    if isinstance(named[-1], str) and is_template(named[-1]):
        return None
    return frozenset(name for name in named if isinstance(name, str))
