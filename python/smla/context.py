"""Contexts (an engine and its threads) and workspaces."""

import ctypes as c
import itertools
import json
import os
import threading
import weakref
from typing import Any

from . import _abi
from ._abi import DeviceType, Engine, Isa
from ._arrays import is_capturing, library_of, on_device
from ._handles import Handle, InUse, Shared
from ._library import check, lib, sized_text
from ._types import Array, EngineName, IsaName
from ._units import bytes_text
from .errors import InvalidArgument, Unsupported, integer, invalid, name_bytes, one_of, words
from .tensor import empty, stream_address

__all__ = ["Context", "Workspace", "default_context", "set_default_context"]
_HEADER = 4096
_ALIGNMENT = 64
_TOO_SMALL, _NO_MEMORY = int(_abi.Status.WORKSPACE_TOO_SMALL), _abi.Workspace()
_ENGINES, _ISAS = words(*Engine), words(*Isa)


class Workspace(Handle):
    """Scratch memory that grows to the size that calls need.

    A workspace serves one call at a time; a concurrent call of another thread raises InvalidArgument. On a
    GPU, all its calls must be on one stream. A workspace cannot be copied or pickled.

    Args:
        context: context of the calls.
        like: array whose library and device are used for allocation. Default: NumPy on a CPU, PyTorch or else
            CuPy on a GPU.
        budget: bytes of scratch for stages that can work in several passes. Default: enough for full speed.

    Example:
        >>> workspace = smla.default_context().workspace(budget=1 << 20)
        >>> workspace.reserve(8192)
        >>> workspace.bytes
        8192
    """

    _instead = "create another one with context.workspace()"
    abi: Any

    def __init__(self, context: "Context", like: Array | None = None, budget: int = 0) -> None:
        self._context, self._budget = context, integer("workspace.budget", budget, 64, least=0)
        self._like = on_device(context.device) if like is None else without_memory(like)
        self._memory: Any = None
        self.abi, self._outgrown = _abi.Workspace(), list[Any]()
        self._in_use = InUse("workspace", "create one per thread with context.workspace()")

    @property
    def bytes(self) -> int:
        """Size of the memory in bytes."""
        return int(self.abi.bytes)

    def _text(self):
        return f"{bytes_text(self.bytes)}, {self._context.description}"

    def reserve(self, size: int, stream: int | None = None) -> None:
        """Grows to at least `size` bytes. Growing moves the memory."""
        with self._in_use:
            self._reserve(size, None if stream is None else stream_address(stream))

    def _run(self, stream, size, function, *arguments):
        """Calls function(*arguments, workspace, stream) of the C ABI, which rejects a workspace with fewer
        bytes than size(*arguments, bytes) returns. Grows the workspace if necessary.
        """
        in_use = self._in_use
        if not in_use.acquire(False):  # three times faster than `with`
            in_use.refuse()
        try:
            status = function(*arguments, self.abi, stream)
            if status == _TOO_SMALL:
                self._reserve(_bytes(size, arguments), stream)
                status = function(*arguments, self.abi, stream)
            if status:
                self._fail(status, stream)
        finally:
            in_use.release()

    def _fail(self, status, stream):
        try:
            check(status)
        except (InvalidArgument, Unsupported):
            raise  # nothing was started
        except BaseException:
            self._reset(stream)
            raise

    def _reserve(self, size, stream):
        if size <= self.abi.bytes:
            return
        size = max(size, _HEADER)
        if stream is not None:
            # Keep the old memory, because a CUDA graph may use it. Doubling bounds its size.
            size = max(size, 2 * self.abi.bytes)
            self._outgrown.append(self._memory)
        try:
            memory = empty(self._like, (size + _ALIGNMENT,), "u8")
        except InvalidArgument:  # smla cannot allocate with this library
            kind = type(self._like).__module__
            raise invalid(
                "workspace",
                f"memory of {kind}",
                "memory of PyTorch or CuPy: context.workspace(like=an array of either)",
            ) from None
        address = library_of(memory).memory(memory, "workspace").address
        aligned = (address + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        grown = _abi.Workspace(aligned, size)
        check(lib.smla_workspace_init(self._context.handle, grown, stream))
        self._memory, self.abi = memory, grown

    def reset(self, stream: int | None = None) -> None:
        """Zeroes the counters, which a failed call may have left at other values."""
        with self._in_use:
            self._reset(None if stream is None else stream_address(stream))

    def _reset(self, stream):
        if self.abi.data:
            check(lib.smla_workspace_init(self._context.handle, self.abi, stream))

    def read_error(self, stream: int | None = None) -> dict[str, Any] | None:
        """Returns the first invalid index in calls with this workspace since the last read, as a dict, or
        None.

        Requires a context with check_indices. Keys: kind, stage, token, column, value (smla/stages.h).
        """
        stream = None if stream is None else stream_address(stream)
        if not self.abi.data:
            return None
        word = _abi.ErrorWord()
        with self._in_use:
            check(lib.smla_read_error(self._context.handle, self.abi, stream, c.byref(word)))
        if word.kind == _abi.BadKind.NONE:
            return None
        return {
            "kind": _abi.BadKind(word.kind).name.lower(),
            "stage": _abi.Stage(word.stage).name.lower(),
            "token": word.token,
            "column": word.column,
            "value": word.value,
        }


def _bytes(function, arguments):
    size = c.c_size_t()
    check(function(*arguments, c.byref(size)))
    return size.value


def without_memory(like):
    """Returns an empty array of like's library and device, so that a workspace does not keep like's memory
    alive.
    """
    try:
        return empty(like, (0,), "u8")
    except InvalidArgument:  # smla cannot allocate with this library; reserve() reports it
        return like


# Contexts by id. Compiled graphs contain the ids.
_ids = itertools.count(1)
_by_id: weakref.WeakValueDictionary[int, "Context"] = weakref.WeakValueDictionary()


class Context(Shared):
    """An engine that runs calls, and its threads.

    Any number of threads may use a context concurrently. A context is immutable; copying returns the same
    object. A context cannot be pickled.

    On a CPU, Ctrl-C ends a call of the main thread within about a second; a running product of a BLAS library
    finishes first. Outputs of the call are then undefined; all objects stay usable. Calls of other threads
    continue.

    Args:
        engine: "reference", "cpu", "cuda" or "auto" (SMLA_ENGINE, else "cpu").
        isa: instruction set of the cpu engine: "scalar", "avx2" ... "amx", "neon", or "auto" (SMLA_ISA, else
            the best of this machine).
        threads: number of threads. Default: SMLA_THREADS, else one per core that the process may use.
            torch.set_num_threads has no effect.
        device: index of the GPU, for the cuda engine.
        batch_invariant: a token's results are bit-identical in every batch, except products of a BLAS
            library.
        kernel: required kernels by stage, such as "attend=cpu_avx512_bf16_attend". Default: SMLA_KERNEL.
        check_indices: calls record the first invalid index for Workspace.read_error. Calls are slower.

    Example:
        >>> smla.Context("reference")
        smla.Context(reference, 1 thread)
    """

    _instead = "create one in each process"
    id: int
    device: tuple[int, int]

    def __init__(
        self,
        engine: EngineName = "auto",
        *,
        isa: IsaName = "auto",
        threads: int = 0,
        device: int = 0,
        batch_invariant: bool = False,
        kernel: str | None = None,
        check_indices: bool = False,
    ) -> None:
        args = _abi.ContextArgs(
            struct_size=c.sizeof(_abi.ContextArgs),
            version=_abi.VERSION,
            engine=one_of("context.engine", engine, _ENGINES),
            isa=one_of("context.isa", isa, _ISAS),
            threads=integer("context.threads", threads),
            device_index=integer("context.device", device),
            batch_invariant=bool(batch_invariant),
            kernel=name_bytes("context.kernel", str(kernel)) if kernel else None,
            check_indices=bool(check_indices),
        )
        handle = c.c_void_p()
        check(lib.smla_context_create(c.byref(args), c.byref(handle)))
        self._acquire(lib.smla_context_destroy, handle.value)
        self.id = next(_ids)
        _by_id[self.id] = self
        is_cpu = self.description.startswith(("cpu", "reference"))
        self.device = (int(DeviceType.CPU), 0) if is_cpu else (int(DeviceType.CUDA), args.device_index)
        self._check_indices = bool(check_indices)
        self._own = threading.local()

    @property
    def description(self) -> str:
        """The engine and its resources, such as "cpu avx512_bf16, 2 threads"."""
        text: bytes = lib.smla_context_description(self.handle)
        return text.decode()

    def workspace(self, like: Array | None = None, budget: int = 0) -> Workspace:
        """Returns a new workspace for calls of this context."""
        return Workspace(self, like, budget)

    def own_workspace(self, like: Any, stream: int | None, size: int) -> Workspace:
        """Returns this thread's workspace for a stream, of at least `size` bytes, for calls without a
        workspace.
        """
        held: dict[Any, Workspace] = self._own.__dict__
        key = (stream or 0, type(like).__module__ == "torch")
        workspace = held.get(key)
        if workspace is None or workspace.abi.bytes < size:
            # A capture records the zeroing of the counters but does not run it. Only this call of the graph
            # is ordered after it, so no other call gets the workspace. It takes 2 us, so a call that does not
            # need counters gets no memory.
            for_this_call = stream is not None and is_capturing()
            if workspace is None or for_this_call:
                workspace = Workspace(self, like)
            if for_this_call and size <= _HEADER and not self._check_indices:
                return workspace
            workspace._reserve(size, stream)
            if not for_this_call:
                held[key] = workspace
        return workspace

    def _run(self, workspace, like, stream, size, function, *arguments):
        """Calls workspace._run(...). If workspace is None, uses a workspace of this thread."""
        if workspace is not None:
            workspace._run(stream, size, function, *arguments)
            return
        held: dict[Any, Workspace] = self._own.__dict__
        workspace = held.get((stream or 0, type(like).__module__ == "torch"))
        status = function(*arguments, _NO_MEMORY if workspace is None else workspace.abi, stream)
        if status == _TOO_SMALL:
            workspace = self.own_workspace(like, stream, _bytes(size, arguments))
            status = function(*arguments, workspace.abi, stream)
        if status:
            check(status) if workspace is None else workspace._fail(status, stream)

    def read_error(self) -> dict[str, Any] | None:
        """Returns Workspace.read_error of this thread's default workspaces."""
        held: dict[Any, Workspace] = self._own.__dict__
        for (stream, _), workspace in list(held.items()):
            if found := workspace.read_error(stream):
                return found
        return None

    def explain(self, stage: str, args: Any) -> Any:
        """Returns which kernel runs a call with these filled arguments, as the dict of explain_call."""
        kind = one_of("stage", stage, {item.name.lower(): item for item in _abi.Stage})
        return json.loads(
            sized_text(
                lambda buffer, size: lib.smla_explain_stage(self.handle, kind, c.byref(args), buffer, size)
            )
        )

    def _text(self):
        return self.description


_defaults: dict[tuple[int, int], Context] = {}
_defaults_lock = threading.Lock()


def default_context(device: Any = (DeviceType.CPU, 0)) -> Context:
    """Returns the default context of a device, which calls without a context use. The first call creates it.

    For the CPU, SMLA_ENGINE may select the reference engine.

    Args:
        device: "cpu", "cuda", "cuda:1", a torch.device, or (type, index).

    Example:
        >>> smla.default_context("cpu") is smla.default_context()
        True
    """
    if type(device) is tuple:
        if found := _defaults.get(device):
            return found
        key = int(device[0]), int(device[1])
    else:
        kind, _, index = str(device).partition(":")
        if kind not in ("cpu", "cuda") or (index and not index.isdecimal()):
            raise invalid("device", repr(str(device)), '"cpu", "cuda" or "cuda:N"')
        key = int(DeviceType[kind.upper()]), int(index or 0)
    if key not in _defaults:
        with _defaults_lock:
            if key not in _defaults:
                if key[0] == DeviceType.CPU:  # the cuda engine does not read its memory
                    _defaults[key] = Context("cpu" if os.environ.get("SMLA_ENGINE") == "cuda" else "auto")
                else:
                    _defaults[key] = Context("cuda", device=key[1])
    return _defaults[key]


def set_default_context(context: Context) -> None:
    """Sets the default context of a device, for calls of all threads. Existing layers and backends keep
    their contexts.

    Example:
        >>> smla.set_default_context(smla.Context("cpu", threads=1))
        >>> smla.default_context().description.endswith("1 thread")
        True
    """
    if not isinstance(context, Context):
        raise invalid("context", type(context).__name__, "a smla.Context")
    with _defaults_lock:
        _defaults[context.device] = context


def context_of(number):
    """Returns the context with this id, which must be alive."""
    try:
        return _by_id[number]
    except KeyError:
        raise invalid("context", number, "the id of an existing smla.Context") from None
