"""Stage calls: fills the arguments, finds context, workspace and stream, and runs the stage."""

import ctypes as c
import inspect
import threading
from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args, get_origin

import numpy as np

from ._abi import DeviceType, Dtype, FieldKind, Stage
from ._arrays import library_of
from ._fields import argument_of, fields_of
from ._fill import Struct
from ._library import check, lib
from ._outputs import Outputs, new
from .context import Context, Workspace, default_context
from .errors import InvalidArgument, flag, invalid, one_of
from .tensor import Tensor, device_of, dtype_of, plain, require_writable, shape_of, stream_of_call


class _Instead(threading.local):
    action = None  # action of explain_call, check_call, prepare_call or Call, which replaces the call


_instead = _Instead()
_run_stage = lib.smla_run_stage.unchecked


CALLS: dict[str, "StageCall"] = {}  # by the name of the stage
_OF_CALL = ("context", "workspace", "stream")
_Function = TypeVar("_Function", bound=Callable[..., Any])


class StageCall:
    """A stage of the C ABI. The Python function of the stage returns _call(locals()).

    The library's tables (_fields.py) list the fields and determine the written fields and the shapes and
    dtypes of outputs. outputs: names of outputs that the function allocates and returns. sizes, dtypes: see
    Outputs. result: function that creates the result from the outputs.
    """

    def __init__(self, name, args_type, outputs="", *, sizes=None, dtypes=None, result=None):
        self.name, self.stage = name, int(Stage[name.upper()])
        fields = fields_of(self.stage)
        self.fields = {field.argument: field for field in reversed(fields)}
        written = [field.name for field in fields if field.is_written]
        self.struct = Struct(args_type, written, argument_of)
        self.outputs = Outputs(fields, outputs, sizes or {}, dtypes or {})
        self.result = result or (lambda output: output)
        self.scales = [
            name.removesuffix("_device")
            for name, field in self.fields.items()
            if field.kind is FieldKind.NUMBER
        ]
        # If such an output is omitted, the stage writes in place.
        self._in_place = [
            (name, field.in_place_of)
            for name, field in self.fields.items()
            if field.is_written and field.is_optional and field.in_place_of
        ]
        CALLS[name] = self

    def of(self, function: _Function) -> _Function:
        """Reads the parameters of the stage's Python function."""
        parameters = inspect.signature(function).parameters
        self.parameters = {name: each for name, each in parameters.items() if name not in _OF_CALL}
        self.words = {  # names of enumerators, in the order of their values
            name: {word: value for value, word in enumerate(get_args(each.annotation))}
            for name, each in self.parameters.items()
            if get_origin(each.annotation) is Literal
        }
        self.flags = [name for name, each in self.parameters.items() if each.annotation is bool]
        # Arguments that only affect outputs.
        self.choices = [name for name in self.parameters if name not in self.struct.arguments]
        self.struct.ignore((*self.choices, *_OF_CALL))
        self.outputs.set_parameters(parameters)
        tensors = [name for name in self.parameters if self.is_a(name, FieldKind.TENSOR)]
        self.first = tensors[0]
        self.numbers = [
            name
            for name, each in self.parameters.items()
            if each.default is each.empty and (each.annotation in (int, float) or name in self.scales)
        ]
        return function

    def is_a(self, argument, kind):
        return argument in self.fields and self.fields[argument].kind is kind

    def is_written(self, argument):
        return argument in self.fields and self.fields[argument].is_written

    def __call__(self, values: dict[str, Any]) -> Any:
        """Runs the stage. values: arguments of the Python function, by name. Returns the result of the
        function.
        """
        like = values[self.first]
        for name, shape, dtype in self.outputs.missing(values):
            values[name] = new(like, shape, dtype)
        results = []
        for name in self.outputs.names:
            if (value := values[name]) is False:
                value = values[name] = None
            results.append(plain(value))
        self._convert(values)
        self._run(values, like)
        return self.result(*results) if results else None

    def _convert(self, values):
        """Converts values for the struct: enumerator names to numbers, scales on the device to addresses."""
        for name, words in self.words.items():
            values[name] = one_of(name, values[name], words)
        for name in self.numbers:
            if values[name] is None:
                raise invalid(name, None, "a number")
        for name in self.flags:
            if type(value := values[name]) is not bool:
                values[name] = flag(name, value)
        for name, other in self._in_place:
            if values[name] is values[other]:
                require_writable(values[name], name)
                values[name] = None
        for name in self.scales:
            if type(scale := values[name]) is not float and scale is not None:
                _put_scale(values, name, self.first)

    def _run(self, values, like):
        """Runs the stage. like: the tensor that determines device, library and stream if the caller omits
        them.
        """
        context, workspace, stream = values["context"], values["workspace"], values["stream"]
        try:
            # If it is absent, the stage itself reports the missing argument.
            device = (DeviceType.CPU, 0) if like is None else device_of(like)
        except InvalidArgument:
            self.struct.fill(values, [])  # raises with the name of the field
            raise
        stream = stream_of_call(stream, device, like)
        keep = []
        args = self.struct.fill(values, keep, stream)
        if context is None:
            context = default_context(device)
        elif not isinstance(context, Context):
            raise invalid("context", type(context).__name__, "a smla.Context")
        if action := _instead.action:
            action(self, args, context, values)
            return
        if workspace is not None and type(workspace) is not Workspace:
            raise invalid("workspace", type(workspace).__name__, "a smla.Workspace from Context.workspace()")
        budget = 0 if workspace is None else workspace._budget
        call = context.handle, self.stage, c.byref(args), budget
        context._run(workspace, like, stream, lib.smla_workspace_size, _run_stage, *call)


def _put_scale(values, name, first):
    """Replaces a scale that is an array of one f32 on the device of `first` by its address, <name>_device."""
    scale = values[name]
    if isinstance(scale, (int, float, np.number)):
        return
    try:
        library_of(scale)
    except InvalidArgument:
        raise invalid(name, type(scale).__name__, "a number, or an array of one f32") from None
    dtype, shape = dtype_of(scale, name), shape_of(scale, name)
    if dtype is not Dtype.F32 or any(extent != 1 for extent in shape):
        raise invalid(name, f"{dtype.name.lower()} {list(shape)}", "a number, or an array of one f32")
    if device_of(scale) != device_of(values[first]):  # the kernel reads it
        raise invalid(
            f"{name}.device", device_of(scale), f"{device_of(values[first])}, the device of {first}"
        )
    values[name] = None
    values[f"{name}_device"] = Tensor(scale, Dtype.F32, name).address


def instead_of(call, action, arguments, keywords):
    """Calls action(stage, args, context, values) instead of running a stage call. Returns its result."""
    if _instead.action:
        raise invalid(
            "call", "a call inside another explain_call, check_call, prepare_call or Call", "one at a time"
        )
    if (getattr(call, "__module__", None) or "").split(".")[0] != "smla":  # an arbitrary function would run
        raise invalid("call", getattr(call, "__name__", repr(call)), "a function of smla.stages")
    answers = []
    _instead.action = lambda *filled: answers.append(action(*filled))
    try:
        call(*arguments, **keywords)
    finally:
        _instead.action = None
    if not answers:
        raise invalid("call", getattr(call, "__name__", repr(call)), "a function of smla.stages")
    return answers[0]


def explain_call(call: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> dict[str, Any]:
    """Returns which kernel would run a stage call, and why the other kernels were not selected. Computes
    nothing.

    Args:
        call: a stage function (smla.attend, smla.torch.attend, ...), followed by its arguments.

    Returns:
        A dict with "stage"; "runs_on", the context's description; and "candidates", a list of dicts, best
        kernel first, with "kernel" (name), "chosen" (bool) and "refusal" (why the kernel does not support the
        arguments, or "").

    Example:
        >>> smla.explain_call(smla.norm, np.ones((1, 1, 4), np.float32), eps=1e-6)["stage"]
        'norm'
    """
    return instead_of(
        call, lambda stage, args, context, *_: context.explain(stage.name, args), arguments, keywords
    )


def check_call(call: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> None:
    """Checks rows, lengths, tables and slots of a stage call, which the call itself does not check.

    Computes nothing. Arguments are the same as in explain_call.

    Raises:
        DataError: a value is invalid; the message describes the first one.

    Example:
        >>> smla.check_call(smla.norm, np.ones((1, 1, 4), np.float32), eps=1e-6)
    """
    instead_of(
        call,
        lambda stage, args, context, *_: check(
            lib.smla_check_stage(context.handle, stage.stage, c.byref(args))
        ),
        arguments,
        keywords,
    )


def prepare_call(call: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> None:
    """Loads kernels and creates state for calls of these shapes, so that a CUDA graph can capture such calls.

    Example:
        >>> smla.prepare_call(smla.norm, np.ones((1, 1, 4), np.float32), eps=1e-6)
    """
    instead_of(
        call,
        lambda stage, args, context, *_: check(lib.smla_prepare(context.handle, stage.stage, c.byref(args))),
        arguments,
        keywords,
    )
