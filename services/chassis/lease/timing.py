"""The timing of each kind of lease. All times scale together, so that tests run at a tenth."""

from dataclasses import astuple, dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Seconds. The lease is safe because beat < self_fence < term < granted_again."""

    # The holder's leases live so long after a renewal, by the database's clock.
    term: float
    # The time between two beats. Several fit into a term, so that a lost beat does no harm.
    beat: float
    # The holder starts nothing new when this has passed since the sending of its last acknowledged beat.
    self_fence: float
    # The work is granted again after this time without a beat. The sweep looks a second time `granted_again - term`
    # after the first.
    granted_again: float
    # After a closed stream the server waits this long for the holder to be heard, here or elsewhere. Then its instance
    # ends.
    closed_grace: float
    # The same, for work that may be done twice: it goes to another holder, and the instance lives on.
    idempotent_grace: float
    # A grant that could not be sent for this long goes to another holder. After the same time a grant on a lost
    # stream may go elsewhere, if its work is harmless to do twice.
    grant_answer: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.beat < self.self_fence < self.term < self.granted_again:
            raise ValueError(f"a lease needs 0 < beat < self_fence < term < granted_again, not {self}")
        if self.silence > self.self_fence:
            raise ValueError(f"a dead stream must be noticed before the self-fence, not {self}")
        if not 0 <= self.idempotent_grace <= self.closed_grace or self.grant_answer <= 0:
            raise ValueError(f"a lease needs 0 <= idempotent_grace <= closed_grace and grant_answer > 0, not {self}")

    def scaled(self, factor: float) -> Self:
        if factor <= 0:
            raise ValueError(f"the lease scale must be positive, not {factor}")
        return type(self)(*(seconds * factor for seconds in astuple(self)))

    @property
    def silence(self) -> float:
        """A stream with an unanswered beat is given up after this time without a message.

        With the beat before and the dial after it, a dead stream is replaced within 10 s, also that of a runner.
        """
        return 2 * self.beat

    @property
    def second_look(self) -> float:
        """The time between the finding of an overdue instance and its end."""
        return self.granted_again - self.term


# A coordinator's executions. Their runs go on elsewhere unharmed, so nothing is gained by waiting.
EXECUTION = LeaseTiming(term=10.0, beat=2.0, self_fence=6.0, granted_again=12.0, closed_grace=1.0, idempotent_grace=1.0)
# A runner's runs. The times are longer, because user code may block the process for seconds. A network that is away for
# 2 s, or a coordinator that starts again, costs no runner its work. Work that is not idempotent is not granted again
# before `granted_again` anyway, so its holder has more time to come back.
RUN = LeaseTiming(term=15.0, beat=3.0, self_fence=8.0, granted_again=16.0, closed_grace=10.0, idempotent_grace=3.0)
