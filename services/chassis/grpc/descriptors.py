"""What a type of message can hold, by its descriptor alone."""

from __future__ import annotations

import functools

from google.protobuf.descriptor import Descriptor


@functools.cache
def reached(descriptor: Descriptor) -> tuple[Descriptor, ...]:
    """The types of messages that can be in one of this type, at any depth; itself first."""
    # A dict, for its order: descriptors of one type are equal.
    found = {descriptor: None}
    ahead = [descriptor]
    while ahead:
        for field in ahead.pop().fields:
            inner = field.message_type
            if inner is not None and inner not in found:
                found[inner] = None
                ahead.append(inner)
    return tuple(found)
