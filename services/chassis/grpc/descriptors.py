"""Finds out from its descriptor what a type of message can hold."""

from __future__ import annotations

import functools

from google.protobuf.descriptor import Descriptor, FieldDescriptor


@functools.cache
def reached(descriptor: Descriptor) -> tuple[Descriptor, ...]:
    """The types of all messages that can be in one of this type, at any depth. The type itself comes first."""
    # A dict keeps the order.
    found = {descriptor: None}
    ahead = [descriptor]
    while ahead:
        for field in ahead.pop().fields:
            inner = field.message_type
            if inner is not None and inner not in found:
                found[inner] = None
                ahead.append(inner)
    return tuple(found)


@functools.cache
def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
