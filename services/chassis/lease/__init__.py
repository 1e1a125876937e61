"""The rules of a lease session, as data in and data out: no clock, no tasks, no network, no protobuf.

Who is authoritative. Only the server's database decides who holds a lease, by its own clock. A holder's
monotonic clock may do one thing: stop the holder from *starting* work when it has not been heard for long
(the self-fence). A running piece of work ends only because it is done, or because the server said so: a
revocation, or a refused renewal.

What is alive. The holder's *instance*, not a stream. A holder keeps one stream with every replica of the
server side; a beat heard on any of them renews all its leases at once. Losing a stream loses no lease.

What each failure leads to:

- a stream breaks: both sides forget what was in flight on it. The holder beats at once on its other
  streams, sends its unanswered reports again on one of them, and dials again. The server withdraws the
  grants that it had not sent; those sent and not counted are in doubt until the holder's next attach.
- a replica of the server dies: the same, seen from the holder. Grants committed but never sent are found by
  their new keeper with a *claim*: the holder refuses what it does not hold, and its refusal is binding.
- a holder is busy and says nothing, its streams open: its grants stay its own, counted or not. Only the
  sweep, which judges the instance, ends them.
- the holder dies: its streams close; after a short grace the server ends the instance, unless another
  replica has heard it since. Silent with open streams: the sweep ends it.
- the database is away: beats stay unanswered. The holder starts nothing new after its self-fence, finishes
  what runs, and keeps its reports. Nothing ends, because nobody can be judged.
- the renewal is refused: all leases are gone. The holder ends its work and comes back as a fresh instance.

Both sides are pulled: a message changes state, and the writer of a stream takes whatever that state owes
the peer when it is free to write (`take_frame`). So what is said is always the present, a slow peer costs a
bounded amount of memory, and many items share one frame without any timer.
"""
