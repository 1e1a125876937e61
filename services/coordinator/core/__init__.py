"""What happens next in an execution: the heart of Windlass, and nothing but rules.

The five laws:

1. No clock, randomness, I/O, logging, async or protobuf; `now` and fresh ids arrive in the call, read once per
   decision.
2. `decide` holds every rule and changes nothing; `evolve` holds no rule and refuses nothing; what it cannot apply is a
   bug and crashes. An event costs no more than the edges of the nodes it names: a fan-out folds in linear time.
3. Folding the history gives the state; effects are a function of event and state, so they can be derived again after a
   crash.
4. A repeated command yields no events and the first answer; a late report is a refusal with a reason, never an
   exception.
5. Matches on commands and events are exhaustive, closed with `assert_never`. When `decide.py` nears 400 lines it
   becomes a folder with one file per command family.

To be read in this order:

    values, definition, graph, retry    words, the compiled workflow, how outcomes travel, when work is tried again
    events, commands, decision          what happened, what is asked, what is answered
    state, evolve                       what it has come to, one event at a time
    decide/                             the rules
    effects, projection                 what to do about it, and the rows that show it

    decision = decide(execution, command, now)
    for event in decision.events:
        evolve(execution, event)
"""

from services.coordinator.core.compiling import compile_definition
from services.coordinator.core.decide import decide
from services.coordinator.core.decision import Decision, Refusal, RefusalReason
from services.coordinator.core.effects import effects, parking, resume_effects
from services.coordinator.core.evolve import evolve, fold
from services.coordinator.core.projection import changed_runs
from services.coordinator.core.state import Execution, Summary, summary
from services.coordinator.core.values import BrokenInvariant

__all__ = [
    "BrokenInvariant",
    "Decision",
    "Execution",
    "Refusal",
    "RefusalReason",
    "Summary",
    "changed_runs",
    "compile_definition",
    "decide",
    "effects",
    "evolve",
    "fold",
    "parking",
    "resume_effects",
    "summary",
]
