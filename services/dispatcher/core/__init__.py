"""Admission, without I/O: who may go next, where to, and what a report makes of a row.

Laws of this folder: no clock, randomness, I/O, logging, async or protobuf. Whatever is known of the present arrives in
the call. Whether a slot is free is *not* decided here: only the database, under the workspace's row lock, knows that.
What is kept in memory are hints about where to look; a wrong hint costs one look, never a slot.
"""
