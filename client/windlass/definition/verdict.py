"""What an examination found, and which of it is worth a warning in this workspace at this time."""

from collections.abc import Collection
from dataclasses import dataclass, field

from windlass.definition import modules
from windlass.definition.faults import Fault, Faults
from windlass.definition.limits import CHILD_DEPTH_MAX


@dataclass
class Verdict:
    """Without faults the definition can be applied; `canonical` is then what is stored."""

    faults: list[Fault] = field(default_factory=Faults)
    # For each node, and for `$output`, the nodes that its templates read; None: all nodes before it. A node whose
    # templates read no node is left out.
    references: dict[str, list[str] | None] = field(default_factory=dict)
    # Modules that are not built in, each with its warning for the case that no runner announces it.
    own_modules: list[tuple[str, Fault]] = field(default_factory=list)
    # Built-in modules that runners do, each with its warning for the case that no connected runner does it.
    built_in_modules: list[tuple[str, Fault]] = field(default_factory=list)
    # Templates, each with a module that a runner which renders has to do, and the warning for the case that none is
    # connected.
    rendered: list[tuple[str, Fault]] = field(default_factory=list)
    # The `until` of each loop that has one, with the module of its body, whose runner evaluates it, and the warning for
    # the case that none which can is connected.
    evaluated: list[tuple[str, Fault]] = field(default_factory=list)
    # Workflows that nodes start, each with its warning for the case that the workspace has no such workflow.
    children: list[tuple[str, Fault]] = field(default_factory=list)
    # Warnings of what is allowed and goes wrong later.
    risks: list[Fault] = field(default_factory=Faults)
    name: str = ""
    canonical: bytes = b""


def warnings_of(verdict: Verdict, announced: Collection[str], rendering: Collection[str] = ()) -> list[Fault]:
    """What goes wrong later, modules that no connected runner does, and templates that none renders. The latter two are
    accepted too, but their work waits.

    `rendering`: the announced modules of the runners that render. While no runner is connected, nothing is said of
    built-in modules and of templates: all of them wait, as in a stack that is just starting.
    """
    warnings = [*verdict.risks]
    warnings += [warning for module, warning in verdict.own_modules if module not in announced]
    if announced:
        warnings += [warning for module, warning in verdict.built_in_modules if module not in announced]
    if announced and modules.RENDERER not in rendering:
        warnings += [warning for module, warning in verdict.rendered if module not in rendering]
    warnings += [warning for module, warning in verdict.evaluated if module in announced and module not in rendering]
    return warnings


def child_warnings(verdict: Verdict, known: Collection[str]) -> list[Fault]:
    """Workflows that nodes start and that are not among the `known` ones of the workspace, and workflows that start
    themselves. Both are accepted: the former may be applied later, the latter may end the recursion by a condition."""
    warnings = [warning for workflow, warning in verdict.children if workflow not in {*known, verdict.name}]
    own = [warning for workflow, warning in verdict.children if workflow == verdict.name]
    message = f"the workflow starts itself, which may go on for {CHILD_DEPTH_MAX} levels"
    return [*warnings, *(each._replace(reason="SELF_REFERENCE", message=message) for each in own)]
