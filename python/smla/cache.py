"""Paged caches over the caller's memory."""

import ctypes as c
import sys

import numpy as np

from . import _abi, _dtypes
from ._abi import Dtype, Format
from ._library import check, lib
from .errors import integer, invalid, one_of
from .tensor import ALIGNMENT, Tensor, _memory, empty, hand_over, require_writable

FORMATS: dict[str | Format, Format] = {
    **{kind.name.lower(): kind for kind in Format if kind},
    **{kind: kind for kind in Format if kind},
}
_ROWS = {
    Format.ROW_F64: Dtype.F64,
    Format.ROW_F32: Dtype.F32,
    Format.ROW_BF16: Dtype.BF16,
    Format.STATE_F32: Dtype.F32,
    Format.STATE_F64: Dtype.F64,
}
_PER_TENSOR = (Format.FP8_576, Format.FP8_512)  # one scale per cache


class Cache:
    """A paged cache: `pages` pages of `page_tokens` tokens in one of smla's record formats.

    data: the memory, any array of uint8 or of the format's own type, first page first; it stays alive with
    the cache. Its first dimension counts pages, and its stride is the distance between them (padded pages are
    fine); a 1-D array, or one that is given with `pages`, is pages one behind the other. format: "row_f32",
    "row_bf16", "row_f64", "fp8_656", "fp8_576", "fp8_584", "fp8_512", "fp8_528", "index_fp8_132",
    "index_mxfp4_68", "state_f32", "state_f64" (docs/formats.md). page_tokens: tokens per page. page_rows:
    rows between pages, 0: page_tokens. width: values per token of row_* and state_*; 0: the format's own, or
    the last dimension of `data`. scale: of the per-tensor formats, value = code * scale: a number, or an f32
    array of one element on the device.
    """

    __slots__ = ("array", "_owner", "_scale", "abi", "format", "device", "_packed", "_sizing", "_in_flight")

    def __init__(
        self,
        data,
        format,
        page_tokens,
        *,
        width=0,
        pages=None,
        page_rows=0,
        page_stride_bytes=None,
        row_stride_bytes=0,
        scale=None,
    ):
        self.format = one_of("cache.format", format, FORMATS)
        address, item, own, device_type, index, shape, strides, _, self._owner = _memory(data, "cache.data")
        self.array, self.device = data.array if type(data) is Tensor else data, (device_type, index)
        self._check_dtype(own)
        if not width and self.format in _ROWS:
            if len(shape) < 2 or item != _dtypes.ITEM_BYTES[_ROWS[self.format]]:
                raise invalid(
                    "cache.width", 0, f"the values per token, as {self.format.name.lower()} has no own width"
                )
            width = shape[-1]
        self.abi = _abi.Cache(
            data=address,
            format=self.format,
            device_type=device_type,
            device_index=index,
            width=integer("cache.width", width),
            page_tokens=integer("cache.page_tokens", page_tokens),
            page_rows=integer("cache.page_rows", page_rows),
            row_stride_bytes=integer("cache.row_stride_bytes", row_stride_bytes, 64),
        )
        if pages is not None:
            pages = integer("cache.pages", pages, 64)
        if page_stride_bytes is not None:
            page_stride_bytes = integer("cache.page_stride_bytes", page_stride_bytes, 64)
        self._set_scale(scale)
        self._set_pages(shape, strides, item, pages, page_stride_bytes)
        self._packed = bytes(self.abi)
        self._sizing = self._without_addresses()
        self._in_flight = tuple in (type(self._owner), type(self._scale))  # see hand_over

    def _without_addresses(self):
        """What sizes of workspaces depend on: the description but for where memory lies."""
        moved = _abi.Cache.from_buffer_copy(self.abi)
        moved.data = (self.abi.data or 0) % ALIGNMENT
        moved.scale_device = 1 if self.abi.scale_device else 0
        return bytes(moved)

    def _check_dtype(self, own):
        """Integers of any size are bytes; floats are values, and of one type."""
        values = _ROWS.get(self.format, Dtype.E2M1 if self.format is Format.INDEX_MXFP4_68 else Dtype.E4M3)
        if own not in (None, Dtype.U8, Dtype.I32, Dtype.I64, values):
            raise invalid(
                "cache.data.dtype",
                own.name.lower(),
                f"u8 or {values.name.lower()}, as {self.format.name.lower()} holds",
            )

    def _set_scale(self, scale):
        self._scale = None
        if scale is None:
            self.abi.scale = 1.0 if self.format in _PER_TENSOR else 0.0
        elif self.format not in _PER_TENSOR:
            raise invalid(
                "cache.scale", "a scale", f"none: that of {self.format.name.lower()} is not one per cache"
            )
        elif isinstance(scale, (int, float, np.number)):
            self.abi.scale = scale
        else:
            address, _, dtype, *device, shape, _, _, self._scale = _memory(scale, "cache.scale")
            if dtype is not Dtype.F32 or any(extent != 1 for extent in shape):
                raise invalid("cache.scale", f"{dtype} {list(shape)}", "one f32")
            if tuple(device) != self.device:
                raise invalid("cache.scale", f"device {device}", f"device {list(self.device)}, the cache's")
            self.abi.scale_device = address

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
            # [pages,tokens,584] without gaps: pages that leave out the padding of packed ones
            unpadded = dense == self._record_bytes() * self.abi.page_tokens
            if page_stride_bytes is None and shape[0] > 1 and (strides[0] * item != dense or unpadded):
                page_stride_bytes = strides[0] * item
        gaps = (page_stride_bytes, self.abi.row_stride_bytes)
        _require_dense(shape, strides, in_pages or [gap // item for gap in gaps if gap])
        self.abi.page_stride_bytes = page_stride_bytes or 0
        if not in_pages:
            self.abi.pages = 1
            stride = page_stride_bytes or self.bytes
            self.abi.pages = pages if pages is not None else bytes_held // stride if stride else 0
        if (wanted := self._used_bytes()) > bytes_held:
            raise invalid(
                "cache.data",
                f"{bytes_held} bytes",
                f"at least {wanted}, those of {self.abi.pages} pages of {self.format.name.lower()}",
            )
        if in_pages and shape[0] and not page_stride_bytes and bytes_held not in (self.bytes, wanted):
            raise invalid(
                "cache.data",
                f"{bytes_held // shape[0]} bytes per page",
                f"{self.bytes // shape[0]}, those of {self.abi.page_tokens} tokens of "
                f"{self.format.name.lower()}",
            )

    def _used_bytes(self):
        """Bytes up to the end of the last record: a view may end before the padding of the last page."""
        abi, record = self.abi, self._record_bytes()
        if not abi.pages:
            return 0
        last_page = (abi.page_tokens - 1) * (abi.row_stride_bytes or record) + record
        return self.bytes - _bytes(abi, pages=1) + last_page

    def _record_bytes(self):
        # 72 tokens fill a page of any format without padding (fp8_584: 73 rows of 576 bytes).
        plain = dict(pages=1, page_tokens=72, page_rows=0, page_stride_bytes=0, row_stride_bytes=0)
        return _bytes(self.abi, **plain) // 72

    @property
    def bytes(self):
        """Bytes from the first page to the end of the last."""
        return _bytes(self.abi)

    @property
    def width(self):
        """Values per token."""
        return self.abi.width or _WIDTHS[self.format]

    @property
    def pages(self):
        return self.abi.pages

    @property
    def page_tokens(self):
        return self.abi.page_tokens

    @property
    def capacity(self):
        """Rows at or past it are holes."""
        return max(0, (self.pages - 1) * (self.abi.page_rows or self.page_tokens) + self.page_tokens)

    @classmethod
    def empty(cls, format, pages, page_tokens, *, width=0, like=None, scale=None):
        """A cache of zeros in new memory: of the library and on the device of `like`, by default NumPy."""
        kind = one_of("cache.format", format, FORMATS)
        abi = _abi.Cache(
            format=kind,
            width=integer("cache.width", width),
            page_tokens=integer("cache.page_tokens", page_tokens),
            pages=integer("cache.pages", pages, 64),
            scale=1.0 if kind in _PER_TENSOR else 0.0,
        )
        size = c.c_size_t()
        check(lib.smla_cache_bytes(c.byref(abi), c.byref(size)))
        data = empty(np.empty(0) if like is None else like, (size.value,), "u8")
        if "torch" in sys.modules and isinstance(data, sys.modules["torch"].Tensor):
            data.zero_()
        else:
            data[:] = 0
        return cls(data, kind, page_tokens, width=width, pages=pages, scale=scale)

    def _hand_over(self, name, keep, stream):
        """Has `stream` wait for what its library still has in flight there, where that can be known."""
        if self._in_flight:
            hand_over(self._owner, self.device, f"{name}.data", keep, stream)
            hand_over(self._scale, self.device, f"{name}.scale", keep, stream)

    def require_writable(self, name):
        """Refuses memory that its library declares read-only."""
        require_writable(self.array, f"{name}.data")

    def __repr__(self):
        return f"smla.Cache({self.format.name.lower()}, {self.pages} pages of {self.page_tokens})"


_WIDTHS = {
    Format.FP8_656: 576,
    Format.FP8_576: 576,
    Format.FP8_584: 512,
    Format.FP8_512: 512,
    Format.FP8_528: 512,
    Format.INDEX_FP8_132: 128,
    Format.INDEX_MXFP4_68: 128,
}


def _bytes(abi, **changes):
    """smla_cache_bytes of a description with some fields changed."""
    described = _abi.Cache.from_buffer_copy(abi)
    for name, value in changes.items():
        setattr(described, name, value)
    size = c.c_size_t()
    check(lib.smla_cache_bytes(c.byref(described), c.byref(size)))
    return size.value


def _require_dense(shape, strides, gaps):
    """Dense, but for the distance between the first dimension's elements: True: any, else one of `gaps`."""
    wanted = 1
    for i in reversed(range(len(shape))):
        if i == 0 and (gaps is True or strides[0] in gaps):
            break
        if shape[i] > 1 and strides[i] != wanted:
            raise invalid(
                "cache.data.stride",
                list(strides),
                "pages that are dense inside (row_stride_bytes and page_stride_bytes describe others)",
            )
        wanted *= shape[i]
