"""How much one mailbox holds, and how much of it is sent at once.

Every key of a workspace can send messages to its executions. Each grant of an execution reads them, and sends them over
a stream that other executions share, so their number and size are bounded.
"""

MEBIBYTE = 1024 * 1024
# Unread messages of one execution. Most are reports of runs that ended while no coordinator held it: each of a thousand
# may have 8 KiB. A sender that finds the mailbox full sends again later. One grant carries all of it, because a holder
# gives up a run that it cannot account for when its report does not arrive within two seconds.
MAILBOX_MESSAGES_MAX = 5_000
MAILBOX_BYTES_MAX = 8 * MEBIBYTE
# Additional room for messages that end the execution, so that a full mailbox does not keep them out.
MAILBOX_ENDING_MESSAGES = 100
MAILBOX_ENDING_BYTES = MEBIBYTE
# The bytes that go with one grant. The rest follows once the holder has the execution (app/poll_loop.py).
GRANT_BYTES_MAX = MAILBOX_BYTES_MAX
# The bytes that go with all grants of one claim. Further grants wait for the next batch.
CLAIM_BYTES_MAX = 16 * MEBIBYTE
# The most that is sent again in one round to all holders together. The last limit is for one execution, so that a
# mailbox that nobody reads leaves room for others. One message may exceed each limit of bytes.
RESENT_MESSAGES_MAX = 1_000
RESENT_BYTES_MAX = 8 * MEBIBYTE
RESENT_BYTES_EACH = MEBIBYTE
