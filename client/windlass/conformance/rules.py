"""The rules for a runner, each in a sentence, and the judge that counts their cases."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import NamedTuple


class Duty(Enum):
    """What a runner owes to its coordinators. docs/runners.md explains the rules in this order."""

    # Attach.
    ATTACH_FIRST = "the first frame has an Attach and nothing else"
    ATTACH_VALID = "an Attach has an instance_id, a capacity of 0 to 20,000, and modules named like http.request@1"
    ATTACH_WAITS = "nothing is sent after the Attach until it is answered"
    KEY_SENT = "every stream has the key in its metadata, as `authorization: Bearer KEY`"
    ATTACH_EVERYWHERE = "one instance attaches to every coordinator"
    ATTACH_AGAIN = "a stream that has ended is replaced, under the same instance_id"
    ATTACH_NAMES_LEASES = "an Attach names every lease that the runner holds"
    ATTACH_REFUSAL = "a lease that the answer to an Attach refuses is dropped and not reported"
    ATTACHED_MISSING = "a stream is given up when its Attach is not answered within Timing.self_fence"
    TIMING_INVALID = "a stream whose answer to the Attach has no times, or impossible ones, is given up"
    TIMING_NEWEST = "the times are those of the newest answer to an Attach"
    BACKOFF = "a coordinator that refuses sessions is dialled less and less often, at most 20 times in a second"
    GRACE = "when all its streams are lost, the runner attaches again within Timing.idempotent_grace, as it was"
    GRACE_SPARES_RUNNING = "work that runs goes on while all streams are lost"
    # Beats.
    BEAT_TIMELY = "a beat is sent every Timing.beat of the answer to the Attach"
    BEAT_NUMBER = "the beats of a session have the numbers 1, 2, 3 and so on"
    BEAT_IN_FLIGHT = "one beat is in flight at a time on a session"
    BEAT_FIRST_FULL = "the first beat of a session is full"
    BEAT_COUNT = "held_count is the number of leases that the beats of the session have named"
    BEAT_HELD = "beats name a lease from its grant until its report is answered"
    BEAT_FULL_WANTED = "the beat after want_full is full"
    BEAT_ON_LOSS = "when one stream is lost, the runner beats at once on the others"
    # Time and silence.
    SILENCE = "a stream is given up when a beat stays unanswered and nothing comes for 2 × Timing.beat"
    BEAT_HEARD = "a stream on which something comes is not given up, although its beat stays unanswered"
    SELF_FENCE = "nothing new begins when Timing.self_fence has passed since the last answered beat was sent"
    FENCE_SPARES_RUNNING = "work that runs goes on past Timing.self_fence"
    # Credit and grants.
    CREDIT_STATED = "credit is stated soon after the answer to the Attach"
    CREDIT_NUMBER = "the credits of a session have rising numbers, and amounts of 0 to 100,000"
    CREDIT_WITHIN_CAPACITY = "the places that are promised to all coordinators are at most Attach.capacity"
    CREDIT_AGAIN = "a place that became free is stated as credit again"
    GRANTS_SEEN = "grants_seen counts every grant of the session, and no more than were sent"
    GRANT_ONCE = "a grant that arrives twice is done once"
    GRANT_STALE = "a grant with a lower epoch than that of the held lease is not begun"
    GRANT_NEWER = "a grant with a higher epoch replaces the held lease"
    GRANT_UNKNOWN_MODULE = "work of a module that the runner does not have is refused or released"
    GRANT_PLACES = "while RunGrant.places_max runs are under way, none begins beside another one of its workspace"
    TARGET_OPEN = "work whose target is one of open_targets is reported as Released with CIRCUIT_OPEN and the target"
    FRAME_ORDER = "a frame is read in its order: grants, then revocations, then claims"
    # Revocations and claims.
    REVOKE_STOPPED = "work that is revoked because its execution ends is reported as Stopped within 1.5 s"
    REVOKE_UNREPORTED = "work that is revoked for another reason is dropped and not reported"
    REVOKE_REPEATED = "a revocation may come with the answer to an Attach, and again; the work is stopped once"
    REVOKE_UNKNOWN = "the revocation of an unknown lease, or of an older epoch of a held one, changes nothing"
    REVOKE_BINDING = "a grant that arrives after its revocation is not begun"
    CLAIM_DENIED = "a claimed lease that the runner does not hold is refused with NOT_HELD"
    CLAIM_BINDING = "a grant that arrives after its claim was refused is not begun"
    CLAIM_SERVED = "work whose lease was claimed is reported to the coordinator that claimed it"
    # Reports.
    REPORT_HEAD = "a report names a lease, its epoch and the instance that was granted it, under an id of its own"
    REPORT_OUTCOME = "a report has an outcome, and its start is not after its end"
    REPORT_SUCCESS = "finished work is reported as Succeeded, with a JSON output"
    REPORT_TIMEOUT = "work whose timeout has passed is reported as Failed with ERROR_CLASS_TIMEOUT"
    REPORT_DEFERRED = "work that is left to somebody else is reported as Deferred, and its place becomes free"
    REPORT_REPEATED = "an unanswered report is repeated under the same id when its stream is lost"
    REPORT_ELSEWHERE = "an unanswered report is repeated to another coordinator while its own is away"
    REPORT_TAKEN = "a report that was taken is not sent again"
    REPORT_REFUSED = "a report that was refused is not sent again, and its lease is dropped"
    REPORT_TAKEN_AGAIN = "an acknowledgement that comes again, or of an unknown report, changes nothing"
    REPORT_INVALID = "after REPORT_INVALID the run is held, and reported as Failed under another id"
    REPORT_OUTLIVES = "an unanswered report is repeated under its old instance when the instance has ended"
    # Values that are too large for a message.
    OUTPUT_UPLOADED = "an output of over 256 KiB is uploaded, and the reference in the answer is reported unchanged"
    UPLOAD_FORM = "an upload names the run, its epoch and its instance, and has the JSON in messages of at most 1 MiB"
    INPUT_FETCHED = "what a grant refers to is downloaded for that run, and the work sees it"
    INPUT_MISSING = "work is reported as Failed if what its grant refers to is gone"
    TRANSFER_AGAIN = "a transfer is tried again after UNAVAILABLE, TRANSFERS_EXCEEDED and SLOW_REQUESTS_EXCEEDED"
    # What templates see.
    TEMPLATES_NONE = "text in braces is text if has_templates is false"
    TEMPLATES_SEE = "templates see input, state, the outputs of nodes, and the execution with its version and its time"
    WITHOUT_OUTPUT = "templates see the state and the error of a node without an output, and its output as null"
    EXECUTION_ERROR = "the templates of work that undoes a node see why the execution does not end well"
    INPUT_OVERRIDES = "input_overrides replace members of the inputs once these are rendered, and are not rendered"
    RENDER_ONLY = "if render_only is set, the output is the rendered config; if render_all is set, also the inputs"
    # Loops.
    LOOP_WORK = "templates of an item see it and its index, and a turn is reported with the branch that its until takes"
    # Ends.
    INSTANCE_FRESH = "after INSTANCE_ENDED or a refused renewal, the runner attaches as a fresh instance without leases"
    INSTANCE_WORK_ENDS = "the work of an instance that has ended is not reported"
    FAULT_REATTACHES = "after any other fault, also an unknown one, the runner attaches again as the same instance"
    STATUS_REATTACHES = "after a status of any kind, the runner attaches again as the same instance"
    SERVER_DRAIN = "a stream whose server drains is still used: its leases are kept, and beats go on"
    UNKNOWN_FIELDS = "frames without content, and fields that the runner does not know, change nothing"
    LIMITS = "a frame has at most 4 MiB and 30,000 items, ids have at most 255 characters, and text has no NUL"
    RUNNER_LIVES = "the runner's process goes on, whatever its coordinators send"
    DRAIN_SAID = "after SIGTERM, the runner says that it drains"
    DRAIN_REFUSES = "a runner that drains does not begin what it is granted"
    DRAIN_ENDS = "a runner that drains finishes or releases its work, ends its streams, and ends with exit code 0"


# This needs a module that defers its work, which a runner need not have.
OF_DEFERRING = frozenset({Duty.REPORT_DEFERRED})
# This needs a module that names what it calls, which a runner need not have either.
OF_CALLING = frozenset({Duty.TARGET_OPEN})
# A runner that cannot render is never granted such work.
OF_RENDERING = frozenset(
    {Duty.TEMPLATES_SEE, Duty.WITHOUT_OUTPUT, Duty.EXECUTION_ERROR, Duty.INPUT_OVERRIDES, Duty.RENDER_ONLY}
)
# These need a process that the kit has started, because it is sent SIGTERM.
OF_THE_PROCESS = frozenset({Duty.RUNNER_LIVES, Duty.DRAIN_SAID, Duty.DRAIN_REFUSES, Duty.DRAIN_ENDS})


class Noted(NamedTuple):
    cases: Counter[Duty]
    breaches: dict[Duty, list[str]]


class Judge:
    """Counts the cases of each rule, and keeps what was seen where one was broken."""

    def __init__(self) -> None:
        self.cases: Counter[Duty] = Counter()
        self.breaches: dict[Duty, list[str]] = {}
        # What looked like a breach while the machine was too slow to judge.
        self.undecided: dict[Duty, list[str]] = {}
        # The rules that do not concern this runner.
        self.spared: frozenset[Duty] = frozenset()

    def check(self, rule: Duty, is_kept: bool, seen: str) -> None:
        """`seen` says what was seen if the rule is broken."""
        self.cases[rule] += 1
        if not is_kept:
            self.breaches.setdefault(rule, []).append(seen)

    def is_kept(self, rule: Duty) -> bool:
        return self.cases[rule] > 0 and rule not in self.breaches and rule not in self.undecided

    def noted(self) -> Noted:
        """What was noted so far, to which `withdraw` goes back."""
        return Noted(Counter(self.cases), {rule: list(seen) for rule, seen in self.breaches.items()})

    def withdraw(self, noted: Noted) -> dict[Duty, list[str]]:
        """Forget what was noted since, but for a runner that ended: no busy machine is the cause of that. Returns the
        breaches among it."""
        ended = self.breaches.pop(Duty.RUNNER_LIVES, None)
        since = {rule: seen[len(noted.breaches.get(rule, ())) :] for rule, seen in self.breaches.items()}
        self.cases, self.breaches = noted.cases, noted.breaches
        if ended is not None:
            self.breaches[Duty.RUNNER_LIVES] = ended
            self.cases[Duty.RUNNER_LIVES] += 1
        return {rule: seen for rule, seen in since.items() if seen}


class StoryEnds(Exception):
    """The runner broke a rule, and the story cannot go on. The judge has noted it."""
