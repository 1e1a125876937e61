"""Rules of a runner that need no I/O: how failures are classed, how much work to ask for ahead.

The laws of the pure core hold here too: no clock, randomness, I/O, logging or async; `now` arrives in the call.
"""
