"""The rules of a lease session. They are pure: no clock, no tasks, no network, no protobuf.

The server's database alone decides who holds a lease, by its own clock. The holder uses its monotonic clock
only to stop *starting* work when no server has answered it for too long (the self-fence). Running work stops
only when it is done or when the server says so, by a revocation or a refused renewal.

Liveness belongs to the holder's *instance*, not to a stream. A holder keeps one stream to every server
replica. A beat that any replica hears renews all leases of the instance. Losing a stream loses no lease.

Each failure has one consequence:

- A stream breaks: both sides forget what was in flight on it. The holder beats at once on its other
  streams, sends its unanswered reports again on one of them, and dials again. The server withdraws the
  grants that it had not sent. Grants that were sent but not counted are in doubt until the next attach.
- A server replica dies: the holder sees broken streams. The replica that takes over asks for grants that
  were committed but perhaps never sent with a *claim*. The holder refuses what it does not hold, for good.
- A holder is busy and sends nothing while its streams are open: it keeps its grants, counted or not. Only
  the sweep ends them, because the sweep judges the instance.
- The holder dies: its streams close. After a short grace the server ends the instance, unless another
  replica has heard it since. If the streams stay open, the sweep ends the instance.
- The database is away: beats stay unanswered. After its self-fence the holder starts nothing new, but it
  finishes what runs and keeps its reports. No instance ends, because none can be judged.
- A renewal is refused: all leases are gone. The holder stops its work and attaches as a fresh instance.

Both sides are pulled: a message changes the state, and the writer of a stream asks the state for the next
frame when it is free to write (`take_frame`). So a frame always tells the present state, a slow peer costs a
bounded amount of memory, and many items share one frame without a timer.
"""
