"""The grants of one stream as its server counts them: the credit for more, the unsent, and the uncounted.

The credit rule. The holder states an absolute amount together with the number of grants that it has seen. Messages may
cross on the way. The credit left is

    amount - (granted - grants seen at the statement) - reserved

where *reserved* places belong to a claim in progress, which may turn them into grants. Holder and server compute the
same figure from the two ends of one ordered stream, so both know whether a new statement lowers the credit, and by how
much. The server confirms a lowering statement when no grant can come any more under the statement before it. Only then
may the holder give the difference to another server, so that it never promises one place twice.

The holder answers grants by counting: one number in a frame takes all grants up to it, so a sent grant costs nothing
more unless it is refused. These are the states of a grant:

| a grant            | waits too long | its stream is lost | the work may be granted again when             |
|--------------------|----------------|--------------------|------------------------------------------------|
| not sent           | withdrawn      | withdrawn          | at once: nobody has seen it                    |
| sent, not counted  | stays          | in doubt           | the holder denies it, or its instance ends     |
| counted            | stays          | stays              | the holder refuses it, or its instance ends    |

Silence proves nothing: a holder that has read a grant may be at work already, and that work may block its event loop
for any time. So there is no time after which a sent grant is taken back.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from services.chassis.lease.frames import Grant, Refused


class LostGrants(NamedTuple):
    """The grants of a stream that is gone and that were not counted."""

    # These were never sent and never will be.
    withdrawn: list[Grant]
    # These were sent, so the holder may be working on them. They stay the holder's until its next attach names or
    # denies them, or until its instance ends.
    in_doubt: list[Grant]


@dataclass(slots=True)
class StreamGrants:
    # Grants sent, and the number up to which the holder has counted them.
    sent: int = 0
    seen: int = 0
    _reserved: int = 0
    # Grants that are not in a frame yet, each with the time at which it was queued.
    _unsent: deque[tuple[float, Grant]] = field(default_factory=deque)
    # Grants that are sent but not counted, oldest first: (number of the first, grants).
    _uncounted: deque[tuple[int, list[Grant]]] = field(default_factory=deque)
    # The newest statement of credit, the grants seen at it, and the number that is yet to be confirmed, or 0.
    _number: int = 0
    _amount: int = 0
    _seen_then: int = 0
    _unconfirmed: int = 0

    @property
    def credit(self) -> int:
        """The credit left. It may be negative for a moment after a lowering statement."""
        return self._amount - (self.sent + len(self._unsent) - self._seen_then) - self._reserved

    @property
    def promised(self) -> int:
        """How many grants may still be sent: credit left, places reserved, and grants that are not sent yet."""
        return max(0, self.credit) + self._reserved + len(self._unsent)

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def state_credit(self, number: int, amount: int, grants_seen: int) -> bool:
        """Take a new statement. False: it is older than the newest one and changes nothing."""
        if number <= self._number:
            return False
        credit_before = self.credit
        self._number, self._amount, self._seen_then = number, amount, grants_seen
        if self.credit < credit_before or self._unconfirmed:
            self._unconfirmed = number
        return True

    def take_confirmation(self) -> int:
        """The number to confirm now, or 0. Ask only after the grants of the frame have been taken."""
        if not self._unconfirmed or (self.credit < 0 and (self._reserved or self._unsent)):
            return 0
        number, self._unconfirmed = self._unconfirmed, 0
        return number

    def reserve(self, wanted: int) -> int:
        taken = max(0, min(wanted, self.credit))
        self._reserved += taken
        return taken

    def give_back(self, count: int) -> None:
        if not 0 <= count <= self._reserved:
            raise ValueError(f"cannot give back {count} of {self._reserved} reserved")
        self._reserved -= count

    def queue(self, grants: Iterable[Grant], now: float) -> None:
        self._unsent.extend([(now, grant) for grant in grants])

    def withdraw(self, queued_until: float) -> list[Grant]:
        """Take back the grants that were queued by then and are still unsent."""
        withdrawn: list[Grant] = []
        while self._unsent and self._unsent[0][0] <= queued_until:
            withdrawn.append(self._unsent.popleft()[1])
        return withdrawn

    def send(self, items_max: int) -> list[Grant]:
        """The next grants to send. They are uncounted until the holder has counted them."""
        if not self._unsent:
            return []
        grants = [self._unsent.popleft()[1] for _ in range(min(items_max, len(self._unsent)))]
        self._uncounted.append((self.sent + 1, grants))
        self.sent += len(grants)
        return grants

    def count(self, seen: int, refused: Sequence[Refused]) -> list[Grant]:
        """The grants up to the number `seen` are taken, except those that the frame refuses."""
        self.seen = seen
        taken: list[Grant] = []
        while self._uncounted and self._uncounted[0][0] <= seen:
            first, grants = self._uncounted.popleft()
            count = seen - first + 1
            taken += grants[:count]
            if count < len(grants):
                self._uncounted.appendleft((first + count, grants[count:]))
        if refused:
            denied = {(each.lease_id, each.epoch) for each in refused}
            taken = [grant for grant in taken if (grant.lease_id, grant.epoch) not in denied]
        return taken

    def lose(self) -> LostGrants:
        """The stream is gone."""
        withdrawn = [grant for _, grant in self._unsent]
        in_doubt = [grant for _, grants in self._uncounted for grant in grants]
        self._unsent.clear()
        self._uncounted.clear()
        return LostGrants(withdrawn, in_doubt)
