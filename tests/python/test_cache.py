"""smla.Cache: shapes, strides, sizes and scales of every format, and what is refused."""

import numpy as np
import pytest
import smla
from arrays import WITH_TORCH, Exporter, World
from numpy_formats import PLAIN, page_bytes, parts, scale_of, to_bits, width_of
from smla._abi import Format
from smla.tensor import empty

try:
    import torch
except ImportError:
    torch = None

FORMATS = [kind.name.lower() for kind in Format if kind]
PER_TENSOR = ("fp8_576", "fp8_512")


def refused(field, *arguments, **options):
    with pytest.raises(smla.InvalidArgument) as caught:
        smla.Cache(*arguments, **options)
    assert caught.value.field == field, caught.value
    assert caught.value.got and caught.value.wanted
    return caught.value


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


# sizes


@pytest.mark.parametrize("page_tokens", [1, 3, 64])
@pytest.mark.parametrize("format", FORMATS)
def test_every_format(format, page_tokens, pages=3):
    width = 24 if format in PLAIN else 0
    like = {"width": width, "scale": scale_of(format)}
    page = page_bytes(format, page_tokens, width)
    size = pages * page
    cache = smla.Cache(zeros(size, dtype=np.uint8), format, page_tokens, **like)
    assert (cache.pages, cache.page_tokens, cache.width) == (pages, page_tokens, width_of(format, width))
    assert cache.bytes == size and cache.capacity == pages * page_tokens and cache.device == (0, 0)
    assert format in repr(cache) and str(pages) in repr(cache)
    in_pages = smla.Cache(zeros(pages, page, dtype=np.uint8), Format[format.upper()], page_tokens, **like)
    assert (in_pages.pages, in_pages.bytes) == (pages, size) and in_pages.format is cache.format
    padding = page - page_tokens * sum(parts(format, width))  # of the last page: may be left out
    few = zeros(size - padding, dtype=np.uint8)
    assert smla.Cache(few, format, page_tokens, **like, pages=pages).bytes == size
    refused("cache.data", few[:-1], format, page_tokens, **like, pages=pages)
    refused("cache.data", zeros(pages, page + 1, dtype=np.uint8), format, page_tokens, **like)
    refused("cache.data", zeros(pages, page - 1, dtype=np.uint8), format, page_tokens, **like)
    fresh = smla.Cache.empty(format, pages, page_tokens, **like)
    assert fresh.bytes == size and fresh.array.dtype == np.uint8 and not fresh.array.any()


@pytest.mark.parametrize("format", PLAIN)
def test_values_give_the_width(format):
    storage = {"f64": np.float64, "f32": np.float32, "bf16": np.uint16}[PLAIN[format]]
    for data in (zeros(2, 4, 24, dtype=storage), zeros(2, 4, 24, dtype=f"u{storage().itemsize}")):
        assert smla.Cache(data, format, 4).width == 24
        assert smla.Cache(data.reshape(-1, 24), format, 4, pages=2).width == 24
    refused("cache.width", zeros(2, 4, 24, dtype=np.uint8), format, 4)
    refused("cache.width", zeros(192, dtype=storage), format, 4)
    refused("cache.width", zeros(2, 4, 24, dtype=storage), format, 4, width=-24)
    refused("cache.width", zeros(2, 4, 24, dtype=storage), format, 4, width=24.0)
    refused("cache.width", zeros(10**5, dtype=np.uint8), format, 4, width=4097)
    refused("cache.data", zeros(2, 4, 24, dtype=storage), format, 4, width=26)


def test_a_width_that_is_not_the_formats():
    assert smla.Cache(zeros(656 * 4, dtype=np.uint8), "fp8_656", 4, width=576).width == 576
    refused("cache.width", zeros(656 * 4, dtype=np.uint8), "fp8_656", 4, width=512)


@pytest.mark.parametrize("size", [1, 100, 656 * 64 - 1])
def test_bytes_that_hold_no_page(size):
    """Refused: a cache without pages takes writes and keeps nothing. An empty array and pages=0 say so."""
    with pytest.raises(
        smla.InvalidArgument, match=f"cache.data: got {size} bytes, wanted .* pages of 41984 bytes"
    ):
        smla.Cache(np.zeros(size, np.uint8), "fp8_656", 64)
    assert smla.Cache(np.zeros(size, np.uint8), "fp8_656", 64, pages=0).capacity == 0
    assert smla.Cache(np.zeros(0, np.uint8), "fp8_656", 64).capacity == 0


@pytest.mark.parametrize("format", FORMATS)
def test_memory_that_ends_inside_of_a_page(format):
    """A last page without its padding is whole; of one that lacks a record nothing is left out silently."""
    width = 8 if format in PLAIN else 0
    like = {"width": width, "scale": scale_of(format)}
    page = page_bytes(format, 3, width)
    records = 3 * sum(parts(format, width))
    data = zeros(4 * page, dtype=np.uint8)
    for size in {2 * page + records, 3 * page}:
        assert smla.Cache(data[:size], format, 3, **like).pages == 3
    assert smla.Cache(data[: 3 * page + records], format, 3, **like, page_stride_bytes=page).pages == 4
    assert smla.Cache(data[: page + records], format, 3, **like, page_stride_bytes=page).pages == 2
    for size in (1, records - 1, page + 1, 2 * page + records - 1):
        for stride in (None, page):
            error = refused("cache.data", data[:size], format, 3, **like, page_stride_bytes=stride)
            assert error.got == f"{size} bytes" and f"pages of {page} bytes" in error.wanted
            assert smla.Cache(data[:size], format, 3, **like, pages=size // page).pages == size // page


def test_pages_that_are_counted():
    data = zeros(10 * 4 * 8)
    assert smla.Cache(data, "row_f32", 4, width=8).pages == 10
    assert smla.Cache(data, "row_f32", 4, width=8, pages=7).pages == 7
    assert smla.Cache(data, "row_f32", 4, width=8, pages=0).capacity == 0
    assert smla.Cache(data.reshape(5, 2, 4, 8), "row_f32", 8).pages == 5
    assert smla.Cache(zeros(0, 4, 8), "row_f32", 4).capacity == 0
    assert smla.Cache(zeros(0, dtype=np.uint8), "fp8_584", 64).pages == 0
    refused("cache.data", data, "row_f32", 4, width=8, pages=11)
    refused("cache.pages", data, "row_f32", 4, width=8, pages=-1)
    refused("cache.pages", data, "row_f32", 4, width=8, pages=2**63)
    refused("cache.pages", data, "row_f32", 4, width=8, pages=1.0)
    refused("cache.data", data.reshape(10, 4, 8), "row_f32", 3)


@pytest.mark.parametrize("name", ["page_tokens", "page_rows", "row_stride_bytes", "page_stride_bytes"])
@pytest.mark.parametrize("value", [-1, 2**63, 4.0, "4", [4]])
def test_numbers_that_are_none(name, value):
    options = {"page_tokens": 4, name: value}
    refused(f"cache.{name}", zeros(2, 4, 8), "row_f32", options.pop("page_tokens"), **options)


@pytest.mark.parametrize("value", [2**31, 2**32 + 4])  # ctypes alone would take the low 32 bits
def test_numbers_beyond_their_field(value):
    refused("cache.page_tokens", zeros(2, 4, 8), "row_f32", value)
    refused("cache.page_rows", zeros(2, 4, 8), "row_f32", 4, page_rows=value)
    refused("cache.width", zeros(2, 4, 8), "row_f32", 4, width=value)
    with pytest.raises(smla.InvalidArgument, match="page_tokens"):
        smla.Cache.empty("fp8_584", 2, value)


def test_integers_of_numpy():
    cache = smla.Cache(zeros(2, 4, 8), "row_f32", np.int64(4), page_rows=np.uint8(6), pages=np.int32(2))
    assert cache.capacity == 6 + 4


# pages and rows


def test_page_rows():
    data = zeros(3, 4, 8)
    assert smla.Cache(data, "row_f32", 4, page_rows=9).capacity == 2 * 9 + 4
    refused("cache.page_rows", data, "row_f32", 4, page_rows=3)
    refused("cache.page_tokens", data, "row_f32", 0)
    assert smla.Cache(data[:0], "row_f32", 4, page_rows=9).capacity == 0


def read_back(cache, rows):
    """The first value of each row, through the library."""
    table = np.asarray([divmod(row, cache.page_tokens)[0] for row in rows], np.int32)[:, None]
    starts = np.asarray([divmod(row, cache.page_tokens)[1] for row in rows], np.int32)
    out = zeros(len(rows), cache.width)
    smla.gather(cache, table, np.arange(len(rows) + 1, dtype=np.int32), out, starts=starts)
    return out[:, 0].tolist()


def numbered(pages, page_tokens, width, pad=0):
    """Row r holds r; pages are `pad` values further apart."""
    whole = np.full((pages, page_tokens * width + pad), np.nan, np.float32)
    view = whole[:, : page_tokens * width].reshape(pages, page_tokens, width)
    view[...] = np.arange(pages * page_tokens).reshape(pages, page_tokens, 1)
    return whole, view


@pytest.mark.parametrize("through", [np.asarray, Exporter], ids=["numpy", "dlpack"])
def test_pages_that_lie_apart(through):
    whole, view = numbered(3, 4, 8, pad=5)
    assert view.base is not None and view.strides[0] == 37 * 4
    by_view = smla.Cache(through(view), "row_f32", 4)
    by_number = smla.Cache(through(whole), "row_f32", 4, width=8, page_stride_bytes=37 * 4)
    flat = smla.Cache(through(whole.reshape(-1)), "row_f32", 4, width=8, page_stride_bytes=37 * 4)
    for cache in (by_view, by_number, flat):
        assert cache.pages == 3 and cache.abi.page_stride_bytes == 37 * 4
        assert read_back(cache, [0, 3, 4, 11]) == [0, 3, 4, 11]
    skipped = smla.Cache(through(view[::2]), "row_f32", 4)
    assert skipped.pages == 2 and read_back(skipped, [0, 4]) == [0, 8]


def test_rows_that_lie_apart():
    whole = np.full((3, 4, 12), np.nan, np.float32)
    whole[..., :8] = np.arange(12).reshape(3, 4, 1)
    for data in (whole, whole.reshape(-1)):
        options = {"page_stride_bytes": 192} if data.ndim == 1 else {}
        cache = smla.Cache(data, "row_f32", 4, width=8, row_stride_bytes=48, **options)
        assert cache.pages == 3 and read_back(cache, [1, 7, 10]) == [1, 7, 10]
    refused("cache.row_stride_bytes", whole, "row_f32", 4, width=8, row_stride_bytes=28)
    raw = zeros(2, 37440, dtype=np.uint8)
    refused("cache.row_stride_bytes", raw, "fp8_584", 64, row_stride_bytes=600)


def test_a_page_of_584_bytes_is_padded_or_not():
    """As vLLM hands it out: [pages,64,584], pages 37440 bytes apart; or without the gaps."""
    memory = zeros(2, 37440, dtype=np.uint8)
    view = memory[:, : 64 * 584].reshape(2, 64, 584)
    assert not view.flags.owndata and view.strides[0] == 37440
    assert smla.Cache(view, "fp8_584", 64).bytes == smla.Cache(memory, "fp8_584", 64).bytes == 2 * 37440
    assert smla.Cache(view[1:], "fp8_584", 64).capacity == 64
    refused("cache.data", view[:, :63], "fp8_584", 64)
    refused("cache.data", view[:1, :63], "fp8_584", 64)
    assert smla.Cache(zeros(2, 64, 584, dtype=np.uint8), "fp8_584", 64).bytes == 2 * 37376
    refused("cache.data", zeros(2, 64, 584, dtype=np.uint8), "fp8_584", 65)


def test_rows_cut_from_wider_ones():
    """The gap behind the last row is not the view's."""
    wide = zeros(90, 1155, dtype=np.uint16)
    options = {"pages": 1, "width": 576, "row_stride_bytes": 2310}
    assert smla.Cache(wide[:, :576], "row_bf16", 90, **options).capacity == 90
    refused("cache.data", wide[:89, :576], "row_bf16", 90, **options)
    refused("cache.data", wide[:, :575], "row_bf16", 90, **options)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[:, :, ::2],
        lambda x: x[:, ::2],
        lambda x: x[:, ::-1],
        lambda x: x.transpose(1, 0, 2),
        lambda x: np.asfortranarray(x),
        lambda x: np.broadcast_to(x[:, :1], x.shape),
        lambda x: x.reshape(-1)[::2],
    ],
)
def test_memory_in_another_order(view):
    data = view(zeros(4, 6, 8))
    options = {"width": 8} if data.ndim == 1 else {}
    refused("cache.data.stride", data, "row_f32", data.shape[1] if data.ndim == 3 else 6, **options)


def test_pages_in_another_order():
    refused("cache.page_stride_bytes", zeros(4, 6, 8)[::-1], "row_f32", 6)
    refused("cache.data", np.broadcast_to(zeros(1, 6, 8), (4, 6, 8)), "row_f32", 6)  # one page for all
    refused("cache.page_stride_bytes", zeros(4, 6, 8), "row_f32", 6, page_stride_bytes=188)
    refused("cache.page_stride_bytes", zeros(4, 6, 8), "row_f32", 6, page_stride_bytes=194)


def test_memory_that_is_not_aligned():
    raw = zeros(656 * 8 + 1, dtype=np.uint8)[1:]
    cache = smla.Cache(raw, "fp8_656", 4)
    with pytest.raises(smla.InvalidArgument) as caught:
        smla.write_kv(zeros(1, 576), np.zeros(1, np.int64), cache)
    assert caught.value.field == "args.cache.data" and not raw.any()


# dtypes


@pytest.mark.parametrize("format", FORMATS)
def test_dtypes(format):
    record, side = parts(format, 8)
    size = page_bytes(format, 8, 8) * 2
    width = 8 if format in PLAIN else 0
    like = {"width": width, "scale": scale_of(format)}
    world = World("numpy", "cpu")
    for dtype in ("u1", "i1", "u2", "i2", "i4", "u8"):  # any integers are bytes
        assert smla.Cache(zeros(size, dtype=np.uint8).view(dtype), format, 8, **like).pages == 2
    own = PLAIN.get(format, "e2m1" if "fp4" in format else "e4m3")
    own_bytes = {"f64": 8, "f32": 4, "bf16": 2}.get(own, 1)
    bits = zeros(size, dtype=np.uint8).view(f"u{own_bytes}")
    assert smla.Cache(world.wrap(bits.view(np.float64) if own == "f64" else bits, own), format, 8, **like)
    for other in ("f64", "f32", "f16"):
        if other != own:
            values = zeros(size // 8 * 8, dtype=np.uint8).view(f"f{other[1:]}"[0] + str(int(other[1:]) // 8))
            error = refused("cache.data.dtype", values, format, 8, **like)
            assert error.got == other and own in error.wanted
    for other in (">f4", "O", "c8"):
        refused("cache.data.dtype", np.zeros(8, other), format, 8, **like)


@pytest.mark.parametrize("thing", [None, 3, "x", [1.0], np.float32(1)])
def test_what_is_no_memory(thing):
    assert refused("cache.data", thing, "fp8_584", 64).got == type(thing).__name__


@pytest.mark.parametrize("name", ["fp8", "FP8_656", "", None, 99, [], "none"])
def test_names_that_are_no_format(name):
    error = refused("cache.format", zeros(2, 4, 8), name, 4)
    assert "fp8_656" in error.wanted and "none" not in error.wanted
    with pytest.raises(smla.InvalidArgument, match=r"cache\.format"):
        smla.Cache.empty(name, 2, 4)


# scales


def stored_scale(cache):
    """The value that the library reads for the code of 1.0: one row of ones."""
    cache.array[...] = 0x38
    out = zeros(1, cache.width)
    smla.gather(cache, np.zeros((1, 1), np.int32), np.array([0, 1], np.int32), out)
    return out[0, 0]


@pytest.mark.parametrize("format", PER_TENSOR)
def test_scales(format):
    data = zeros(2, 4, width_of(format), dtype=np.uint8)
    assert "one scale per cache" in refused("cache.scale", data, format, 4).wanted
    with pytest.raises(smla.InvalidArgument, match=f"cache.scale: .*{format}"):
        smla.Cache.empty(format, 1, 4)
    for scale in (0.37, 2, np.float32(0.37), np.float64(3), np.int32(5)):
        assert stored_scale(smla.Cache(data, format, 4, scale=scale)) == np.float32(scale)
    for shape in ((), (1,), (1, 1, 1)):
        kept = np.full(shape, 0.25, np.float32)
        for array in (kept, Exporter(kept), smla.tensor(kept.view(np.int32) if shape else kept, "f32")):
            cache = smla.Cache(data, format, 4, scale=array)
            kept[...] = 0.25
            assert stored_scale(cache) == 0.25
            kept[...] = 0.5  # read when the call runs
            assert stored_scale(cache) == 0.5
    assert stored_scale(smla.Cache.empty(format, 1, 4, scale=0.125)) == 0.125
    for scale in (
        np.ones(2, np.float32),
        np.ones(0, np.float32),
        np.ones(1),
        np.ones(1, np.int32),
        "1",
        [1.0],
    ):
        refused("cache.scale", data, format, 4, scale=scale)
    for scale in (0, -1.0, np.nan, np.inf, 1e-60):  # the last is 0 in f32
        cache = smla.Cache(data, format, 4, scale=scale)
        with pytest.raises(smla.InvalidArgument) as caught:
            stored_scale(cache)
        assert caught.value.field == "args.cache.scale"


@pytest.mark.parametrize("format", [name for name in FORMATS if name not in PER_TENSOR])
def test_formats_without_a_scale_refuse_one(format):
    width = 24 if format in PLAIN else 0
    data = zeros(page_bytes(format, 4, width), dtype=np.uint8)
    for scale in (1.0, 0.5, np.ones(1, np.float32)):
        refused("cache.scale", data, format, 4, width=width, scale=scale)


# empty, torch


@pytest.mark.parametrize("bad", [{"pages": -1}, {"pages": 2.0}, {"page_tokens": 0}, {"width": 3}])
def test_empty_refuses(bad):
    with pytest.raises(smla.InvalidArgument) as caught:
        smla.Cache.empty("fp8_656", **{"pages": 2, "page_tokens": 4, **bad})
    assert caught.value.field == f"cache.{next(iter(bad))}"


def test_empty_where_a_context_runs():
    for engine in ("cpu", "reference"):
        context = smla.Context(engine, threads=1)
        cache = smla.Cache.empty("fp8_656", 2, 4, context=context)
        assert cache.device == context.device == (0, 0) and isinstance(cache.array, np.ndarray)


def test_empty_of_nothing():
    assert smla.Cache.empty("fp8_584", 0, 64).capacity == 0
    with pytest.raises(smla.InvalidArgument, match="width"):
        smla.Cache.empty("row_f32", 2, 4)


@pytest.mark.parametrize("mark", [pytest.param(None, marks=WITH_TORCH)])
def test_torch(mark, monkeypatch):
    data = torch.zeros(3, 4, 576, dtype=torch.float8_e4m3fn)
    cache = smla.Cache(data, "fp8_576", 4, scale=torch.tensor(0.5))
    smla.write_kv(torch.ones(1, 576), torch.tensor([5]), cache)
    assert (
        cache.array.data_ptr() == data.data_ptr()
        and (data.float()[1, 1] == 2).all()
        and data.float().sum() == 2 * 576
    )
    padded = torch.zeros(3, 5, 8)[:, :4]
    assert smla.Cache(padded, "row_f32", 4).abi.page_stride_bytes == 160
    assert smla.Cache(torch.zeros(2, 4, 8, dtype=torch.bfloat16), "row_bf16", 4).width == 8
    refused("cache.data.dtype", torch.zeros(2, 4, 8, dtype=torch.float16), "row_bf16", 4)
    refused("cache.data.dtype", torch.zeros(2, 4, 576, dtype=torch.float8_e5m2), "fp8_576", 4)
    monkeypatch.setattr("smla.cache.empty", lambda *shape: empty(*shape).fill_(7))
    like = smla.Cache.empty("fp8_656", 2, 4, like=data)
    assert isinstance(like.array, torch.Tensor) and not like.array.any()
    assert isinstance(smla.Cache.empty("fp8_656", 2, 4, like=like).array, torch.Tensor)
    with pytest.raises(smla.Unsupported):
        smla.Cache(torch.zeros(2, 4, 8, requires_grad=True), "row_f32", 4)


def test_a_cache_over_named_memory():
    """smla.tensor around an exporter: its memory, once."""
    values = to_bits(np.arange(64.0).reshape(2, 4, 8), "bf16")
    for array in (values, Exporter(values)):
        cache = smla.Cache(smla.tensor(array, "bf16"), "row_bf16", 4)
        assert cache.array is array and read_back(cache, [0, 5]) == [0, 40]
