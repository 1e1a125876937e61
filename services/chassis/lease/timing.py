"""The timing contract of each kind of lease. All of it scales together, so that tests run at a tenth."""

from dataclasses import astuple, dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Seconds. The order term > self_fence > beat, and granted_again > term, is what makes the lease safe."""

    # The life of a holder's leases after a renewal, by the database's clock.
    term: float
    # The time between two beats of a holder. Several fit into a term, so that one lost beat does no harm.
    beat: float
    # A holder starts nothing new when its last acknowledged beat was sent longer ago than this.
    self_fence: float
    # Work is granted again after so long without a beat. The sweep's second look comes this much after `term`.
    granted_again: float
    # After a stream closed, the server waits so long for the holder to be heard elsewhere.
    closed_grace: float
    # A grant that is not sent in this time goes to another holder. A grant that was sent on a lost stream goes to
    # another holder after this time, if doing it twice is harmless.
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
        return type(self)(*(seconds * factor for seconds in astuple(self)))

    @property
    def silence(self) -> float:
        """A stream is dead when a beat is unanswered and nothing has arrived for so long.

        Together with the beat before it and the dial after it, a dead stream is replaced within 10 s.
        """
        return 2 * self.beat

    @property
    def second_look(self) -> float:
        """How long a sweep that finds an overdue instance waits before it ends it."""
        return self.granted_again - self.term


# For a coordinator's executions. All their effects are fenced writes, so they move soon after a stream is closed.
EXECUTION = LeaseTiming(term=10.0, beat=2.0, self_fence=6.0, granted_again=12.0, closed_grace=1.0)
# For a runner's runs. It is longer, because user code may block the process for seconds.
RUN = LeaseTiming(term=15.0, beat=3.0, self_fence=8.0, granted_again=16.0, closed_grace=1.0)
