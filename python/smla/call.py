"""Prepared calls: planned once, then run with varying addresses (smla/prepared_call.h)."""

from __future__ import annotations

import ctypes as c
import functools
import inspect
import struct
from collections.abc import Callable, Iterable
from typing import Any

from ._handles import Handle
from ._library import check, lib
from ._run import instead_of
from .cache import Cache
from .context import Workspace, without_memory
from .errors import InvalidArgument, invalid
from .tensor import owner_of, stream_of_call

__all__ = ["Call"]


class Call(Handle):
    """A stage call that is checked and planned once, then run with varying addresses.

    Use it for calls that are repeated with the same shapes, strides, dtypes and numbers, as in the layers and
    steps of an engine. Several threads may run a call concurrently. A call cannot be copied or pickled.
    Backend.call prepares a step of a backend.

    Args:
        function: a stage function (smla.attend, ...), followed by its arguments.
        moving: names of the arguments whose addresses each run provides, such as ["q", "out"]; "cache" names
            a cache, and "cache.scale" its scale on the device. Outputs in `moving` may be omitted from the
            arguments. All other arguments are fixed: the call keeps their memory alive and uses it in each
            run. Do not resize them.

    Attributes:
        moving: tuple of names.
        bytes: maximum workspace of a run.

    call(*addresses, workspace=None, stream=None) runs the call with one address for each name in `moving`, in
    that order (tensor.data_ptr() of PyTorch, array.ctypes.data of NumPy). The memory at each address must
    have the same layout as at creation. Addresses are not checked: a run with a wrong address may crash or
    overwrite other memory. A run is fastest if each address has the same remainder modulo 256 as at creation.
    workspace, stream: as for stages.

    Example:
        >>> x, out = np.ones((2, 1, 4), np.float32), np.empty((2, 1, 4), np.float32)
        >>> step = smla.Call(smla.norm, ["x", "out"], x, out=out, eps=1e-6)
        >>> step(x.ctypes.data, out.ctypes.data)
        >>> out[0, 0].round(3).tolist()
        [1.0, 1.0, 1.0, 1.0]
    """

    moving: tuple[str, ...]
    bytes: int
    _instead = "prepare it again"

    def __init__(
        self, function: Callable[..., Any], moving: Iterable[str], /, *arguments: Any, **keywords: Any
    ) -> None:
        names = None if isinstance(moving, str) or not isinstance(moving, Iterable) else tuple(moving)
        if names is None or not all(isinstance(name, str) for name in names):
            raise invalid("moving", "no list of names", 'a list of argument names, such as ["q", "out"]')

        moving = names

        def create(stage, args, context, values):
            given = inspect.signature(function).bind(*arguments, **keywords).arguments
            for name in stage.outputs.names:
                allocated = values[name] is not None and values[name] is not given.get(name)
                if allocated and name not in moving:
                    raise invalid(name, "no array", "an array, or its name in `moving`")
            budget = getattr(values["workspace"], "_budget", 0)
            function_of = functools.partial(lib.smla_call_create, context.handle, stage.stage)
            like, held = values[stage.first], owners(given, moving)
            self._create(function_of, stage.struct, args, moving, context, like, held, budget)

        instead_of(function, create, arguments, keywords)

    def _create(self, create, layout, args, moving, context, like, held, *budget):
        """Creates the C call. create: function of the C ABI with its first arguments. held: objects that each
        run uses.
        """
        offsets = (c.c_size_t * len(moving))(*map(layout.offset, moving))
        handle, size = c.c_void_p(), c.c_size_t()
        check(create(c.byref(args), offsets, len(moving), *budget, c.byref(handle)))
        self._acquire(lib.smla_call_destroy, handle.value, context, held)
        check(lib.smla_call_bytes(self.handle, c.byref(size)))
        self.moving, self.bytes, self._context = tuple(moving), size.value, context
        self._like, self._pack = without_memory(like), struct.Struct(f"={len(moving)}Q").pack
        return self

    def _text(self) -> str:
        return f"moving {', '.join(self.moving) or 'nothing'}"

    def __call__(
        self, *addresses: int, workspace: Workspace | None = None, stream: int | None = None
    ) -> None:
        context = self._context
        if workspace is not None and not isinstance(workspace, Workspace):
            raise invalid("workspace", type(workspace).__name__, "smla.Workspace")
        if stream is not None or context.device[0]:
            stream = stream_of_call(stream, context.device, self._like)
        try:
            packed = self._pack(*addresses)
        except (struct.error, TypeError):
            wanted = "an address for each of " + (", ".join(self.moving) or "no arguments")
            got = ", ".join(type(each).__name__ for each in addresses) or "none"
            raise invalid("addresses", got, f"{wanted}: integers, such as tensor.data_ptr()") from None
        context._run(workspace, self._like, stream, _bytes, lib.smla_call_run, self.handle, packed)


def _bytes(handle, _addresses, size):
    return lib.smla_call_bytes(handle, size)


def owners(values, moving):
    """Returns the objects that keep the memory of arguments alive, except arguments in `moving`."""
    out = []
    for name, value in values.items():
        if isinstance(value, Cache):
            if name not in moving or (value.abi.scale_device and f"{name}.scale" not in moving):
                out.append(value._borrowed)
        elif name not in moving and value is not None:
            try:
                out.append(owner_of(value, name))
            except InvalidArgument:  # not an array
                pass
    return out
