"""One stage call: fills the arguments, finds context, workspace and stream, and runs it."""

import ctypes as c
import threading

from ._abi import DeviceType, Stage
from ._fill import Struct
from ._library import check, lib
from .context import Context, Workspace, default_context
from .errors import Error, InvalidArgument, Unsupported, invalid
from .tensor import device_of, stream_of


class _Instead(threading.local):
    action = None  # what explain_call and its like do in place of the call


_instead = _Instead()


class StageCall:
    """A stage of the C ABI. `outputs`: the fields it writes. run(values) -> None."""

    def __init__(self, name, args_type, outputs):
        self.name, self.stage = name, int(Stage[name.upper()])
        self.struct = Struct(args_type, outputs)
        self.function = getattr(lib, f"smla_{name}")

    def __call__(self, values, like, context=None, workspace=None, stream=None):
        """like: the tensor that gives the device, library and stream which the caller does not give."""
        try:
            # If it is absent, the stage itself refuses, with its name.
            device = (DeviceType.CPU, 0) if like is None else device_of(like)
        except InvalidArgument:
            self.struct.fill(values, [])  # raises with the name of the field
            raise
        if stream is not None:
            if type(stream) is not int or stream < 0:
                raise invalid("stream", repr(stream), "its address (of PyTorch: stream.cuda_stream)")
        elif device[0]:
            stream = stream_of(like) or 0
        keep = []
        args, key = self.struct.fill_sized(values, keep, stream)
        if context is None:
            context = default_context(device)
        elif not isinstance(context, Context):
            raise invalid("context", type(context).__name__, "a smla.Context")
        if action := _instead.action:
            action(self, args, context)
            return
        reference = c.byref(args)
        budget = 0 if workspace is None else _of_caller(workspace)._budget
        key = (self.stage, budget, key)
        size = context._sizes.get(key)
        if size is None:
            size = self._size(context, key, reference)
        if workspace is None:
            workspace = context.own_workspace(like, stream, size)
        else:
            workspace.reserve(size, stream)
        if status := self.function(context.handle, reference, workspace.abi, stream):
            self._fail(status, workspace, stream)

    @staticmethod
    def _size(context, key, reference):
        size = c.c_size_t()
        stage, budget, _ = key
        check(lib.smla_workspace_size(context.handle, stage, reference, budget, c.byref(size)))
        if len(context._sizes) >= 4096:  # shapes of a server change for ever
            context._sizes.clear()
        context._sizes[key] = size.value
        return size.value

    @staticmethod
    def _fail(status, workspace, stream):
        try:
            check(status)
        except (InvalidArgument, Unsupported):
            raise  # nothing was started
        except Error:
            workspace.reset(stream)
            raise


def _of_caller(workspace):
    if type(workspace) is not Workspace:
        raise invalid("workspace", type(workspace).__name__, "a smla.Workspace, of Context.workspace()")
    return workspace


def _with(action, call, arguments, keywords):
    if _instead.action:
        raise invalid(
            "call", "a call inside another explain_call, check_call or prepare_call", "one at a time"
        )
    answers = []
    _instead.action = lambda stage, args, context: answers.append(action(stage, args, context))
    try:
        call(*arguments, **keywords)
    finally:
        _instead.action = None
    if not answers:
        raise invalid("call", getattr(call, "__name__", repr(call)), "a function of smla.stages")
    return answers[0]


def explain_call(call, /, *arguments, **keywords):
    """Which kernel a call would take, and why not the others. Nothing is computed.

    call: a stage function (smla.attend, smla.torch.attend, ...), then its arguments. Returns a dict: "stage";
    "runs_on": the context's description; "candidates": a list, the best kernel first, of dicts with "kernel":
    its name, "chosen": whether the call takes it, and "refusal": why it cannot run these arguments, "" if it
    can.
    """
    return _with(lambda stage, args, context: context.explain(stage.name, args), call, arguments, keywords)


def check_call(call, /, *arguments, **keywords):
    """Scans what hot calls take on trust (rows, lengths, tables, slots); DataError at the first bad value.

    Nothing is computed.
    """
    _with(
        lambda stage, args, context: check(lib.smla_check_stage(context.handle, stage.stage, c.byref(args))),
        call,
        arguments,
        keywords,
    )


def prepare_call(call, /, *arguments, **keywords):
    """Loads and makes what calls of these shapes need, so that later ones may be captured in a CUDA graph."""
    _with(
        lambda stage, args, context: check(lib.smla_prepare(context.handle, stage.stage, c.byref(args))),
        call,
        arguments,
        keywords,
    )
