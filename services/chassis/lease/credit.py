"""How many grants may go to one holder: the server's half of the credit rule. Messages may cross on the way.

The holder states an absolute amount together with the number of grants that it has seen. The credit left is

    amount - (granted - grants seen at the statement) - reserved

where *reserved* places belong to a claim in progress, which may turn them into grants. Holder and server
compute the same figure from the two ends of one ordered stream, so both know whether a new statement lowers
the credit, and by how much. The server confirms a lowering statement when no grant can come any more under
the statement before it. Only then may the holder give the difference to another server, so that it never
promises one place twice.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class CreditAccount:
    granted: int = 0
    reserved: int = 0
    _number: int = 0
    _amount: int = 0
    _seen_then: int = 0
    _unconfirmed: int = 0

    @property
    def left(self) -> int:
        """The credit left. It may be negative for a moment after a lowering statement."""
        return self._amount - (self.granted - self._seen_then) - self.reserved

    def state(self, number: int, amount: int, grants_seen: int) -> bool:
        """Take a new statement. False: it is older than the newest one and changes nothing."""
        if number <= self._number:
            return False
        left_before = self.left
        self._number, self._amount, self._seen_then = number, amount, grants_seen
        if self.left < left_before or self._unconfirmed:
            self._unconfirmed = number
        return True

    def reserve(self, wanted: int) -> int:
        taken = max(0, min(wanted, self.left))
        self.reserved += taken
        return taken

    def give_back(self, count: int) -> None:
        if not 0 <= count <= self.reserved:
            raise ValueError(f"cannot give back {count} of {self.reserved} reserved")
        self.reserved -= count

    def use(self, count: int) -> None:
        """Turn reserved places into grants."""
        self.give_back(count)
        self.granted += count

    def unuse(self, count: int) -> None:
        """Take back grants that were never sent."""
        self.granted -= count

    def take_confirmation(self, has_unsent_grants: bool) -> int:
        """The number to confirm now, or 0. Ask only after the grants of the frame have been taken."""
        if not self._unconfirmed:
            return 0
        if self.left < 0 and (self.reserved or has_unsent_grants):
            return 0
        number, self._unconfirmed = self._unconfirmed, 0
        return number
