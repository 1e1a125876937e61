"""The timing contract of each kind of lease. All of it scales together, so that tests run at a tenth."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Seconds. The order term > self_fence > beat, and granted_again > term, is what makes the lease safe."""

    # From a renewal, how long the holder's leases live by the database's clock.
    term: float
    # How often the holder beats: several fit into a term, so that one lost beat is nothing.
    beat: float
    # From the sending of the last acknowledged beat, after how long the holder starts nothing new.
    self_fence: float
    # After how long without a beat the work is granted again. The difference to `term` is the second look
    # of the sweep.
    granted_again: float
    # How long the server waits after a stream closed for the holder to be heard elsewhere.
    closed_grace: float
    # How long a grant may wait to be sent before it goes to another holder; and how long a lost stream is
    # awaited before what was sent on it may go elsewhere, if it is harmless to do twice.
    grant_answer: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.beat < self.self_fence < self.term < self.granted_again:
            raise ValueError(f"a lease needs 0 < beat < self_fence < term < granted_again, not {self}")
        if self.silence > self.self_fence:
            raise ValueError(f"a dead stream must be noticed before the self-fence, not {self}")
        if self.closed_grace < 0 or self.grant_answer <= 0:
            raise ValueError(f"a lease needs closed_grace >= 0 and grant_answer > 0, not {self}")

    def scaled(self, factor: float) -> Self:
        if factor <= 0:
            raise ValueError(f"the lease scale must be positive, not {factor}")
        return type(self)(
            self.term * factor,
            self.beat * factor,
            self.self_fence * factor,
            self.granted_again * factor,
            self.closed_grace * factor,
            self.grant_answer * factor,
        )

    @property
    def silence(self) -> float:
        """After how long without a word, while a beat is unanswered, a stream is dead though it is open.

        With the beat before it and the dial after it a dead stream is replaced within 10 s, also a runner's.
        """
        return 2 * self.beat

    @property
    def second_look(self) -> float:
        """How long a sweep that finds an overdue instance waits before it ends it."""
        return self.granted_again - self.term


# A coordinator's executions: after a closed stream at once, since all its effects are fenced writes.
EXECUTION = LeaseTiming(term=10.0, beat=2.0, self_fence=6.0, granted_again=12.0, closed_grace=1.0)
# A runner's runs: longer, since user code may hold the process for seconds.
RUN = LeaseTiming(term=15.0, beat=3.0, self_fence=8.0, granted_again=16.0, closed_grace=1.0)
