"""How much one mailbox holds, and how much of it goes at once.

Whoever has a key of an execution's workspace can send to it: what is not bounded here is read by every turn that
grants the execution, and goes over the one stream that others share.
"""

MEBIBYTE = 1024 * 1024
# Unread, of one execution. Mostly the reports of runs that ended while nobody held it: of a thousand at once, each may
# have 8 KiB, and what finds no room is brought again by its sender. All of it goes with one grant, well below what a
# stream takes: a holder gives up a run that it cannot account for when no report of it comes within two seconds.
MAILBOX_MESSAGES_MAX = 5_000
MAILBOX_BYTES_MAX = 8 * MEBIBYTE
# Beyond these, for what asks for the end: that reaches an execution however full its mailbox is.
MAILBOX_ENDING_MESSAGES = 100
MAILBOX_ENDING_BYTES = MEBIBYTE
# With one grant; the rest is said again once the holder has it (app/rounds.py).
GRANT_BYTES_MAX = MAILBOX_BYTES_MAX
# With all grants of a claim. Those that come after wait for the next turn.
CLAIM_BYTES_MAX = 16 * MEBIBYTE
# Said again in one round to all holders, and of that for one execution: each in its turn, so that mailboxes that their
# holders do not read leave room for the others. Each limit of bytes is passed by at most one message.
SAID_AGAIN_MESSAGES_MAX = 1_000
SAID_AGAIN_BYTES_MAX = 8 * MEBIBYTE
SAID_AGAIN_BYTES_EACH = MEBIBYTE
