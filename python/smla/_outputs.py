"""Creates outputs that the caller omitted, with shapes and dtypes from the fields of the stage."""

from . import _dtypes
from ._abi import Dtype, FieldKind
from .errors import integer, invalid
from .tensor import dtype_of, empty, shape_of, typed

_F32, _F64 = Dtype.F32, Dtype.F64
_FLOATS = frozenset((_F64, _F32, Dtype.BF16, Dtype.F16))
_DTYPES = {1 << dtype: dtype for dtype in Dtype}


def sums(array, name):
    """Returns the dtype of sums over an input: f64 for f64, else f32."""
    return _F64 if dtype_of(array, name) is _F64 else _F32


def float_of(array, name="x"):
    """Returns the dtype of an output for a floating-point input: the input's dtype, or bf16 for fp8."""
    dtype = dtype_of(array, name)
    return dtype if dtype in _FLOATS else Dtype.BF16


def new(like, shape, dtype):
    return typed(empty(like, tuple(shape), dtype), dtype)


def extent(value, name):
    """Returns a size argument as an int."""
    return integer(name, value, 32, least=0)


def rank(array, name, ndim):
    shape = shape_of(array, name)
    if len(shape) != ndim:
        raise invalid(f"{name}.ndim", len(shape), str(ndim))
    return shape


def agree(argument, size, shape, output, dim):
    """Raises an error if a size argument differs from the dimension of the caller's output."""
    if size != shape[dim]:
        raise invalid(argument, size, f"{shape[dim]} ({output}.shape[{dim}])")


class Outputs:
    """The new arrays that a stage computes.

    listed: "out, lse?", in the order of the result; `?` marks outputs that are computed only on request.
    sizes: for letters that no input has, the argument that sets the size, and a function that computes it
    from the call's values and the lengths by letter. dtypes: arguments that set dtypes of outputs, if not
    `<output>_dtype`, with the dtype if the argument is None.
    """

    def __init__(self, fields, listed, sizes, dtypes):
        tensors = {field.argument: field for field in reversed(fields) if field.kind is FieldKind.TENSOR}
        self._sizes = sizes
        names = [name.strip() for name in listed.split(",") if name.strip()]
        self.names = [name.rstrip("?") for name in names]
        self.asked_for = frozenset(name.rstrip("?") for name in names if name.endswith("?"))
        self.fields = [tensors[name] for name in self.names]
        inputs = [field for field in fields if field.argument in tensors and not field.is_written]
        self._first = inputs[0].argument
        self._sources = {}  # fields by the letters of their shapes
        for field in (*inputs, *self.fields):
            for letter in field.shape:
                self._sources.setdefault(letter, []).append(field)
        self._plans = [
            (
                field,
                self._dims(field, tensors),
                *dtypes.get(field.argument, (f"{field.argument}_dtype", None)),
            )
            for field in self.fields
        ]
        self._choices = []

    @staticmethod
    def _dims(field, tensors):
        """Returns (letter, divisor) of each dimension. "*" selects the letter of the in-place input."""
        out = []
        for dim, word in enumerate(field.shape):
            letter, _, divisor = word.partition("/")
            like = tensors[field.in_place_of].shape[dim] if word == "*" else letter
            out.append((like, int(divisor or 1)))
        return out

    def set_parameters(self, parameters):
        """Sets the parameters of the stage's function. An optional parameter that sets a dimension or dtype
        of an output must agree with the caller's output.
        """
        for field, dims, dtype, _ in self._plans:
            sizes = [
                (self._sizes[letter][0], i) for i, (letter, _) in enumerate(dims) if letter in self._sizes
            ]
            choices = [(name, i) for name, i in (*sizes, (dtype, None)) if name in parameters]
            self._choices += [
                (field.argument, argument, dim, len(field.shape))
                for argument, dim in choices
                if parameters[argument].default is None
            ]

    def missing(self, values, extent=extent, dtype_of=dtype_of):
        """Returns (argument, shape, dtype) of each requested output that `values` lack, in order."""
        out, lengths, dtypes = [], {}, {}
        for name, argument, dim, ndim in self._choices:
            array = values.get(name)
            if array is None or array is True or array is False or values.get(argument) is None:
                continue
            if dim is None:
                has, chosen = dtype_of(array, name), _dtypes.parse(values[argument], argument)
                if chosen is not has:
                    raise invalid(argument, chosen.name.lower(), f"{has.name.lower()} ({name}.dtype)")
            else:
                agree(argument, values[argument], rank(array, name, ndim), name, dim)
        for field, dims, chosen, default in self._plans:
            name = field.argument
            value = values.get(name)
            if name in self.asked_for if value is None else value is not True:
                continue
            if (other := field.given_with) is not None:
                if (dtypes.get(other) or dtype_of(values[other], other)) != field.given_dtype:
                    continue
            shape = []
            for letter, divisor in dims:
                length = self._length(letter, lengths, values, extent)
                shape.append(length if divisor == 1 else length // divisor)
            dtypes[name] = self._dtype(field, values, chosen, default)
            out.append((name, shape, dtypes[name]))
        return out

    def _length(self, letter, lengths, values, extent):
        if letter in lengths:
            return lengths[letter]
        for field in self._sources[letter]:
            array = values.get(field.argument)
            if array is not None and not isinstance(array, bool):
                lengths.update(zip(field.shape, rank(array, field.argument, len(field.shape))))
                return lengths[letter]
        if letter not in self._sizes:  # a required tensor is missing
            shape_of(None, self._sources[letter][0].argument)
        argument, size = self._sizes[letter]
        length = size(values, lambda other: self._length(other, lengths, values, extent))
        lengths[letter] = extent(length, argument)
        return lengths[letter]

    def _dtype(self, field, values, chosen, default):
        dtype = values.get(chosen)
        if (dtype := default if dtype is None else dtype) is not None:
            return _dtypes.parse(dtype, chosen)
        if field.types & (field.types - 1) == 0:  # only one dtype
            return _DTYPES[field.types]
        like = field.double_as or self._first
        any_float = field.types >> Dtype.F16 & 1
        return (float_of if any_float else sums)(values[like], like)
