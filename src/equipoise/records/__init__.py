"""Records: the states of methods and the messages between server and clients, as plain data.

A record maps names to trees, tensors, numbers, strings, lists and mappings with string keys.
Anything else is refused by name when the record is made. So no method needs code for checkpoints,
resuming, sending or comparing. Nothing that is loaded can execute code, and a record is the same
whether it stays in this process or travels.
"""

from equipoise.records.contents import finite, size, tensors_of
from equipoise.records.files import CannotSave, Saved, check_form, dump, parse, read, write
from equipoise.records.packing import pack, unpack
from equipoise.records.record import Down, PerClient, Record, State, Up, plain

__all__ = [
    "CannotSave",
    "Down",
    "PerClient",
    "Record",
    "Saved",
    "State",
    "Up",
    "check_form",
    "dump",
    "finite",
    "pack",
    "parse",
    "plain",
    "read",
    "size",
    "tensors_of",
    "unpack",
    "write",
]
