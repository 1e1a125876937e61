"""Where the templates of a node stand, and what those in the body of a loop see besides the others."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from windlass.definition.compensation import SEEN
from windlass.definition.config_schemas import LOOP_MODULES, OF_BODY
from windlass.definition.modules import FOR_EACH, SUB_WORKFLOW
from windlass.definition.templates import TemplateText, is_template, texts_of

# Fields that hold an expression without the braces of a template.
_EXPRESSIONS: Final = {
    "condition@1": re.compile(r"\.config\.expression"),
    "switch@1": re.compile(r"\.config\.cases\[\d+\]\.when"),
}
_BODY_SEES: Final = {"for_each@1": ("item", "index"), "repeat@1": ("index",)}
_UNTIL_SEES: Final = ("output", "index")
# The input of a child that is an item, unless the body has inputs.
_CHILD_INPUTS: Final = {"item": "{{ item }}", "index": "{{ index }}"}


def body_of(node: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The body of a loop. None: the node is no loop, or its body is another fault."""
    module, config = node.get("module"), node.get("config")
    if not isinstance(module, str) or module not in LOOP_MODULES or not isinstance(config, dict):
        return None
    body = config.get("body")
    if not isinstance(body, dict):
        return None
    return _of_child(body) if is_child(node) else body


def is_child(node: Mapping[str, Any]) -> bool:
    """The body of the loop names a workflow: each item is a child."""
    return node.get("module") == FOR_EACH and "workflow" in node["config"]["body"]


def _of_child(body: Mapping[str, Any]) -> Mapping[str, Any]:
    config = {key: body[key] for key in ("workflow", "version", "onParentEnd") if key in body}
    return {"module": SUB_WORKFLOW, "config": config, "inputs": body.get("inputs", _CHILD_INPUTS)}


def texts_of_node(node: Mapping[str, Any], path: str) -> Iterator[TemplateText]:
    """The templates of a node, without those of its body."""
    config = node.get("config")
    if body_of(node) is not None and isinstance(config, dict):
        config = {key: value for key, value in config.items() if key not in OF_BODY}
    yield from _texts(node, config, path)


def texts_of_body(node: Mapping[str, Any], body: Mapping[str, Any], path: str) -> Iterator[TemplateText]:
    """The templates of the body of a loop. `path` is that of the loop's config."""
    sees = _BODY_SEES[str(node.get("module"))]
    yield from _texts(body, body.get("config"), f"{path}.body", sees, is_flat=is_child(node))
    until = node["config"].get("until")
    if isinstance(until, str):
        yield TemplateText(_as_template(until), f"{path}.until", _UNTIL_SEES)


def texts_of_compensation(part: Mapping[str, Any], path: str) -> Iterator[TemplateText]:
    """The templates of a node's compensation, which has this path."""
    yield from _texts(part, part.get("config"), path, SEEN)


def _texts(
    part: Mapping[str, Any], config: Any, path: str, more: tuple[str, ...] = (), *, is_flat: bool = False
) -> Iterator[TemplateText]:
    """`is_flat`: the members of the config are beside the inputs."""
    expression = _EXPRESSIONS.get(str(part.get("module")))
    for place, value in ((path if is_flat else f"{path}.config", config), (f"{path}.inputs", part.get("inputs"))):
        for text, where in texts_of(value, place):
            if is_template(text):
                yield TemplateText(text, where, more)
            elif expression is not None and expression.fullmatch(where, len(path)):
                yield TemplateText(_as_template(text), where, more)


def _as_template(expression: str) -> str:
    return expression if is_template(expression) else "{{ " + expression + " }}"
