"""A call that is repeated over other memory: its arguments are filled once, then only addresses are written.

vLLM's two calls of a layer then take 20 us instead of 39 while Python's code and objects are in the
processor's caches. In an engine's step the layer's other operators run in between and evict them: 90 us
instead of 167.
"""

import ctypes as c
import struct

from ._handles import Handle
from ._library import check

_ADDRESS = struct.Struct("=Q")


class Recorded(Handle):
    """A call of the C ABI, `function(handle, args, workspace, stream)`, but for addresses of some tensors.

    args: filled; `kind`, a smla._fill.Struct, lays them out. moving: fields whose tensors move, but keep
    shape, strides, dtype and their place between multiples of 16 bytes. holds: objects whose handles args
    have. Does not keep memory of tensors and caches alive: the caller holds it and looks the call up by it.
    """

    __slots__ = ("_function", "_handle", "_kind", "_packed", "_places", "_context", "_bytes", "_holds")
    _instead = "record the call again"

    def __init__(self, function, handle, args, kind, moving, context, workspace_bytes, holds=()):
        self._function, self._handle, self._context, self._holds = function, handle, context, holds
        self._kind, self._packed, self._bytes = type(args), bytes(args), workspace_bytes
        self._places = [kind.places[name][1] for name in moving]

    def __call__(self, like, stream, *addresses):
        """like: an array beside which a workspace is allocated. stream: as in calls of stages."""
        args = self._kind.from_buffer_copy(self._packed)
        for place, address in zip(self._places, addresses):
            _ADDRESS.pack_into(args, place, address)
        workspace = self._context.own_workspace(like, stream, self._bytes)
        check(self._function(self._handle, c.byref(args), workspace.abi, stream))
