"""Paged caches over the caller's memory."""

import ctypes as c
import functools
import math
from typing import Any

import numpy as np

from . import _abi, _dtypes
from ._abi import DeviceType, Dtype, Format
from ._arrays import library_of, on_device
from ._arrays.interface import dense, moved
from ._library import check, lib
from ._units import Described, bytes_text, device_text
from .errors import integer, invalid, one_of, words
from .tensor import Array, empty, require_writable

__all__ = ["Cache"]
FORMATS = words(*(kind for kind in Format if kind))
_ROWS = {
    Format.ROW_F64: Dtype.F64,
    Format.ROW_F32: Dtype.F32,
    Format.ROW_BF16: Dtype.BF16,
    Format.STATE_F32: Dtype.F32,
    Format.STATE_F64: Dtype.F64,
}
_PER_TENSOR = (Format.FP8_576, Format.FP8_512)  # one scale per cache
_FOUR_BITS = (
    Format.INDEX_MXFP4_68,
    Format.NVFP4_288,
    Format.NVFP4_288_SPLIT,
    Format.NVFP4_384,
    Format.NVFP4_352,
)


class Cache(Described):
    """A paged cache over the caller's memory: `pages` pages of `page_tokens` tokens in a record format.

    Any number of threads may use a cache concurrently. The caller must order calls that write the same rows.
    copy.copy creates a second cache over the same memory. copy.deepcopy and pickle copy the memory (NumPy,
    PyTorch or CuPy), without gaps between pages.

    Args:
        data: array of uint8 or of the format's value type, beginning with page 0. The cache keeps this memory
            alive and uses it even if the array gets other memory (`t.data = ...` and t.set_() of PyTorch).
            The first dimension counts pages, and its stride is the distance between them; in a 1-D array, or
            with `pages`, pages are contiguous. Without `pages`, the array must contain a whole number of
            pages; the last may end before its padding.
        format: "row_f32", "row_bf16", "row_f64", "fp8_656", "fp8_576", "fp8_584", "fp8_512", "fp8_528",
            "fp8_528_g32", "fp8_528_g32_split", "nvfp4_288", "nvfp4_288_split", "nvfp4_384", "nvfp4_352",
            "index_fp8_132", "index_mxfp4_68", "state_f32" or "state_f64" (docs/formats.md).
        page_tokens: tokens per page.
        width: values per token of row_* and state_*. Default: last dimension of `data`.
        page_rows: rows between pages. Default: page_tokens.
        page_stride_bytes: bytes between pages. Default: first stride of `data`.
        row_stride_bytes: bytes between rows. Default: packed.
        scale: a number, or an f32 array of one element on the device; required for fp8_576 and fp8_512, where
            value = code * scale.
        writer: bits of smla.Writer, for formats whose writers differ. Default: as vLLM.

    Attributes:
        array: the memory; for PyTorch, `data.detach()`.
        format, device: format and device of the cache.
        abi: the C struct.
        layout: all other arguments; `Cache(cache.array, **cache.layout)` is the same cache.

    Example:
        >>> smla.Cache(np.zeros((8, 64, 656), np.uint8), "fp8_656", 64)
        smla.Cache(fp8_656, width 576, 8 pages of 64 tokens, 328 KiB)
    """

    __slots__ = ("array", "layout", "abi", "format", "device", "_borrowed")
    abi: Any
    array: Any
    format: Format
    layout: dict[str, Any]
    device: tuple[int, int]

    def __init__(
        self,
        data: Array,
        format: str,
        page_tokens: int,
        *,
        width: int = 0,
        pages: int | None = None,
        page_rows: int = 0,
        page_stride_bytes: int | None = None,
        row_stride_bytes: int = 0,
        scale: float | Array | None = None,
        writer: int = 0,
    ) -> None:
        self.format = one_of("cache.format", format, FORMATS)
        memory = library_of(data, "cache.data").memory(data, "cache.data")
        shape, strides, item = memory.shape, memory.strides, memory.item
        self.array, self.device = memory.array, (memory.device_type, memory.device)
        self._check_dtype(memory.dtype)
        if not width and self.format in _ROWS:
            if len(shape) < 2 or item != _dtypes.ITEM_BYTES[_ROWS[self.format]]:
                raise invalid(
                    "cache.width",
                    0,
                    f"values per token, because {self.format.name.lower()} has no fixed width",
                )
            width = shape[-1]
        self.abi = _abi.Cache(
            data=memory.address,
            format=self.format,
            device_type=memory.device_type,
            device_index=memory.device,
            width=integer("cache.width", width),
            page_tokens=integer("cache.page_tokens", page_tokens),
            page_rows=integer("cache.page_rows", page_rows),
            row_stride_bytes=integer("cache.row_stride_bytes", row_stride_bytes, 64),
            writer=integer("cache.writer", writer),
        )
        if pages is not None:
            pages = integer("cache.pages", pages, 64)
        if page_stride_bytes is not None:
            page_stride_bytes = integer("cache.page_stride_bytes", page_stride_bytes, 64)
        scale_memory = self._set_scale(scale)
        self._set_pages(shape, strides, item, pages, page_stride_bytes)
        self.layout = self._layout(shape, strides, item, scale_memory and scale_memory.array)
        # What a call reads, in one object, because grow() may replace it during calls of other threads: the
        # description, the function for the current address and the expected address of the memory, the
        # function to run before a use, and the owner of the memory.
        special = scale_memory or memory.hand_over
        before_use = self._before_use(memory, scale_memory) if special else None
        self._borrowed = (bytes(self.abi), memory.now, memory.address, before_use, memory.owner)

    def _layout(self, shape, strides, item, scale_array):
        """Returns the arguments of Cache except the memory.

        Values are plain Python objects, except a scale on the device, because compiled code reads them and
        PyTorch 2.11's compiler cannot read fields of a ctypes struct.
        """
        abi = self.abi
        layout = {"format": self.format.name.lower(), "page_tokens": abi.page_tokens}
        # The compiler may pass a copy with other strides, so omit arguments that follow from the shape.
        by_shape = len(shape) > 1 and shape[0] == abi.pages and not abi.row_stride_bytes
        if not by_shape or abi.page_stride_bytes not in (0, strides[0] * item):
            layout["pages"] = abi.pages
            layout["page_stride_bytes"] = abi.page_stride_bytes
            layout["row_stride_bytes"] = abi.row_stride_bytes
        for field in ("width", "page_rows", "writer"):
            if value := getattr(abi, field):
                layout[field] = value
        if self.format in _PER_TENSOR:  # a scale of 0 must not count as omitted
            layout["scale"] = abi.scale if scale_array is None else scale_array
        return layout

    def _check_dtype(self, own):
        """Requires integers of any size (raw bytes) or floats of the format's value type."""
        values = _ROWS.get(self.format, Dtype.E2M1 if self.format in _FOUR_BITS else Dtype.E4M3)
        if own not in (None, Dtype.U8, Dtype.I32, Dtype.I64, values):
            raise invalid(
                "cache.data.dtype",
                own.name.lower(),
                f"u8 or {values.name.lower()} for {self.format.name.lower()}",
            )

    def _set_scale(self, scale):
        """Sets the scale, and returns its memory if it is an array."""
        _check_scale(self.format, scale)
        if isinstance(scale, (int, float, np.number)):
            self.abi.scale = scale
        elif scale is not None:
            memory = library_of(scale, "cache.scale").memory(scale, "cache.scale")
            if memory.dtype is not Dtype.F32 or any(extent != 1 for extent in memory.shape):
                kind = "raw memory" if memory.dtype is None else memory.dtype.name.lower()
                raise invalid("cache.scale", f"{kind} {list(memory.shape)}", "one f32")
            device = memory.device_type, memory.device
            if device != self.device:
                raise invalid("cache.scale", f"device {device}", f"device {self.device}, as the cache")
            self.abi.scale_device = memory.address
            return memory
        return None

    def _set_pages(self, shape, strides, item, pages, page_stride_bytes):
        in_pages = len(shape) > 1 and pages is None
        bytes_held = item * (1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides)))
        if 0 in shape:
            bytes_held = 0
        if in_pages:
            self.abi.pages = shape[0]
            dense = item
            for extent in shape[1:]:
                dense *= extent
            if page_stride_bytes is None and shape[0] > 1:
                # [pages,tokens,584] without gaps: pages without the padding of packed pages
                unpadded = dense == _record_bytes(self.format, self.abi.width) * self.abi.page_tokens
                if strides[0] * item != dense or unpadded:
                    page_stride_bytes = strides[0] * item
        gaps = (page_stride_bytes, self.abi.row_stride_bytes)
        _require_dense(shape, strides, in_pages or [gap // item for gap in gaps if gap])
        self.abi.page_stride_bytes = page_stride_bytes or 0
        if not in_pages:
            self.abi.pages = self._whole_pages(bytes_held) if pages is None else pages
        if (wanted := self._used_bytes()) > bytes_held:
            raise invalid(
                "cache.data",
                f"{bytes_held} bytes",
                f"at least {wanted} for {self.abi.pages} pages of {self.format.name.lower()}",
            )
        if in_pages and shape[0] and not page_stride_bytes and bytes_held not in (self.bytes, wanted):
            raise invalid(
                "cache.data",
                f"{bytes_held // shape[0]} bytes per page",
                f"{self.bytes // shape[0]}, {self.abi.page_tokens} tokens of {self.format.name.lower()}",
            )

    def _whole_pages(self, bytes_held):
        """Returns the number of contiguous pages; the last page needs all records, but no padding."""
        stride, page = self._page_stride(), self._page_bytes()
        pages, rest = divmod(bytes_held, stride) if stride else (0, 0)
        if 0 < rest < page:
            kind = f"{self.abi.page_tokens} tokens of {self.format.name.lower()}"
            raise invalid(
                "cache.data",
                f"{bytes_held} bytes",
                f"a whole number of pages of {stride} bytes ({kind}), or the argument `pages`",
            )
        return pages + (rest > 0)

    def _used_bytes(self):
        """Returns the bytes up to the end of the last record. A view may end before the padding of the last
        page.
        """
        return self.bytes - _bytes(self.abi, pages=1) + self._page_bytes() if self.abi.pages else 0

    def _page_bytes(self):
        """Returns the bytes of a page up to the end of its last record."""
        record = _record_bytes(self.format, self.abi.width)
        return (self.abi.page_tokens - 1) * (self.abi.row_stride_bytes or record) + record

    def _page_stride(self):
        """Returns the bytes between pages."""
        return self.abi.page_stride_bytes or _bytes(self.abi, pages=1)

    @property
    def bytes(self) -> int:
        """Bytes from the first page to the end of the last page."""
        return _bytes(self.abi)

    @property
    def width(self) -> int:
        """Values per token."""
        return self.abi.width or _width(self.format)

    @property
    def pages(self) -> int:
        """Number of pages."""
        return self.abi.pages

    @property
    def page_tokens(self) -> int:
        """Number of tokens per page."""
        return self.abi.page_tokens

    @property
    def capacity(self) -> int:
        """Number of rows. Row numbers from this number on are invalid and are skipped."""
        return max(0, (self.pages - 1) * (self.abi.page_rows or self.page_tokens) + self.page_tokens)

    @classmethod
    def empty(
        cls,
        format: str,
        pages: int,
        page_tokens: int,
        *,
        width: int = 0,
        like: Array | None = None,
        context: Any = None,
        scale: float | Array | None = None,
        writer: int = 0,
    ) -> "Cache":
        """Returns a cache of zeros in new memory.

        Args:
            format, pages, page_tokens, width, scale, writer: as in Cache.
            like: array whose library and device are used. Default: the context's device, with NumPy on a CPU,
                and PyTorch or else CuPy on a GPU.
            context: context that will use the cache. Default: the CPU.
        """
        kind = one_of("cache.format", format, FORMATS)
        _check_scale(kind, scale)
        abi = _abi.Cache(
            format=kind,
            width=integer("cache.width", width),
            page_tokens=integer("cache.page_tokens", page_tokens),
            pages=integer("cache.pages", pages, 64),
            writer=integer("cache.writer", writer),
        )
        size = c.c_size_t()
        check(lib.smla_cache_bytes(c.byref(abi), c.byref(size)))
        if like is None:
            like = on_device((DeviceType.CPU, 0) if context is None else context.device)
        data = empty(like, (size.value,), "u8")
        data[...] = 0
        return cls(data, kind, page_tokens, width=width, pages=pages, scale=scale, writer=writer)

    def grow(self, pages: int) -> None:
        """Moves the cache to new memory with `pages` pages in total.

        Rows keep their numbers and contents; new pages are zero. `array` becomes a new array of the same
        library and device. Views of the old array, other caches over it, and captured CUDA graphs keep the
        old memory, so capture these graphs again. Doubling the pages keeps the total cost of copying
        proportional to the tokens. A concurrent call uses the old or the new memory, and its writes may be
        lost.
        """
        pages = integer("pages", pages, 64)
        if pages < self.pages:
            raise invalid("pages", pages, f"at least {self.pages}, the current number of pages")
        if pages > self.pages:
            self._become(self._moved(pages))

    def _become(self, other):
        for name in self.__slots__:
            setattr(self, name, getattr(other, name))
        return self

    def __copy__(self) -> "Cache":
        other = Cache.__new__(Cache)._become(self)
        other.abi = _abi.Cache.from_buffer_copy(self.abi)
        return other

    def __deepcopy__(self, memo: Any) -> "Cache":
        return self._moved(self.pages, copy_scale=True)

    def __reduce__(self) -> Any:
        moved = self._moved(self.pages, copy_scale=True)
        return functools.partial(Cache, **moved.layout), (moved.array,)

    def _moved(self, pages, copy_scale=False):
        """Returns a cache in new memory with at least as many pages: the same contents, then zeros."""
        library = library_of(self.array)
        memory = library.memory(self.array, "cache.data")
        item, shape = memory.item, memory.shape
        used = -(-self._page_bytes() // item)
        step = _bytes(self.abi, pages=1, page_stride_bytes=0) // item  # stride of new pages
        if (self._page_stride() % item) or step * item < self._page_bytes():
            raise invalid("cache.page_stride_bytes", self._page_stride(), f"a multiple of {item} bytes")
        page, layout = shape[1:], dict(self.layout)
        elements = math.prod(page)
        by_shape = "pages" not in layout and elements <= step
        if by_shape and (self.pages < 2 or memory.strides[0] == elements):
            step = elements  # unchanged: dense, possibly without the padding of packed pages
        flat = library.zeros(self.array, (pages * step,))
        if self.pages:
            target = library.strided(flat, (self.pages, used), (step, 1))
            target[...] = library.strided(self.array, (self.pages, used), (self._page_stride() // item, 1))
        if by_shape:
            flat = library.strided(flat, (pages, *page), (step, *dense(page)))
        else:
            layout.update(pages=pages, page_stride_bytes=0)
        scale = layout.get("scale")
        if copy_scale and self.abi.scale_device:
            layout["scale"] = library_of(scale).zeros(scale, scale.shape)
            layout["scale"][...] = scale
        return Cache(flat, **layout)

    @staticmethod
    def _before_use(memory, scale):
        """Returns the function that a call runs before using memory from DLPack or a scale on the device."""

        def before_use(name, keep, stream):
            if scale and scale.now and scale.now() != scale.address:
                raise moved(f"{name}.scale")
            for part, each in (("data", memory), ("scale", scale)):
                if each and each.hand_over:
                    each.hand_over(each, f"{name}.{part}", keep, stream)

        return before_use

    def require_writable(self, name: str) -> None:
        """Raises an error if the memory is read-only according to its library."""
        require_writable(self.array, f"{name}.data")

    def _text(self):
        size = f"{self.pages} pages of {self.page_tokens} tokens, {bytes_text(self.bytes)}"
        return f"{self.format.name.lower()}, width {self.width}, {size}{device_text(self.device)}"


@functools.lru_cache
def _record_bytes(format, width):
    """Returns bytes per token. 288 tokens fill a page of any format without padding (fp8_584: 292 rows of 576
    bytes).
    """
    return _bytes(_abi.Cache(format=format, width=width, pages=1, page_tokens=288)) // 288


@functools.cache
def _width(format):
    """Returns the width of a format with a fixed width."""
    info = _abi.FormatInfo(struct_size=c.sizeof(_abi.FormatInfo))
    check(lib.smla_format_get_info(format, 0, c.byref(info)))
    return info.width


def _check_scale(format, scale):
    per_cache, name = format in _PER_TENSOR, format.name.lower()
    if scale is None and per_cache:
        raise invalid("cache.scale", None, f"a number or f32 array, because {name} has one scale per cache")
    if scale is not None and not per_cache:
        raise invalid("cache.scale", "a scale", f"none, because {name} has no scale per cache")


def _bytes(abi, **changes):
    """Returns smla_cache_bytes of a description with some fields changed."""
    described = _abi.Cache.from_buffer_copy(abi)
    for name, value in changes.items():
        setattr(described, name, value)
    size = c.c_size_t()
    check(lib.smla_cache_bytes(c.byref(described), c.byref(size)))
    return size.value


def _require_dense(shape, strides, gaps):
    """Requires dense memory except in the first dimension, whose stride must be in `gaps` (True
    allows any).
    """
    wanted = 1
    for i in reversed(range(len(shape))):
        if i == 0 and (gaps is True or strides[0] in gaps):
            break
        if shape[i] > 1 and strides[i] != wanted:
            raise invalid(
                "cache.data.stride",
                list(strides),
                "dense pages; row_stride_bytes and page_stride_bytes describe others",
            )
        wanted *= shape[i]
