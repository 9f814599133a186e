"""Copies of a smla.Cache, and caches that grow, over every way to hold memory."""

import copy
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import smla
from arrays import WITH_TORCH, Exporter
from conftest import ROOT
from numpy_formats import PLAIN, page_bytes, parts, scale_of
from smla._abi import Format

try:
    import torch
except ImportError:
    torch = None

FORMATS = [kind.name.lower() for kind in Format if kind]
PAGES, TOKENS, WIDTH = 3, 5, 24
LIBRARIES = ["numpy", pytest.param("torch", marks=WITH_TORCH)]


def noise(size):
    return np.random.default_rng(size).integers(1, 256, size, dtype=np.uint8)  # never 0


def of(library, array):
    return torch.from_numpy(array) if library == "torch" else array


def host(array):
    """The bytes of an array, in its own order."""
    return np.ascontiguousarray(np.asarray(array)).view(np.uint8).reshape(-1)


def used_bytes(format):
    """Returns the bytes of a page without its padding."""
    return TOKENS * sum(parts(format, WIDTH))


# Each gives a cache and its pages' bytes, [PAGES, used]: all that a copy has to hold.


def flat(library, format):
    page = page_bytes(format, TOKENS, WIDTH)
    memory = noise(PAGES * page + 7)[: PAGES * page]
    cache = smla.Cache(
        of(library, memory), format, TOKENS, width=WIDTH if format in PLAIN else 0, scale=scale_of(format)
    )
    return cache, memory.reshape(PAGES, page)[:, : used_bytes(format)]


def apart(library, format):
    """Pages with more between them than the format asks for."""
    page = page_bytes(format, TOKENS, WIDTH)
    memory = noise(PAGES * (page + 40)).reshape(PAGES, page + 40)
    width = WIDTH if format in PLAIN else 0
    cache = smla.Cache(of(library, memory)[:, :page], format, TOKENS, width=width, scale=scale_of(format))
    return cache, memory[:, : used_bytes(format)]


def in_a_pool(library, format):
    """The second of four layers whose pages alternate, described by numbers."""
    page = page_bytes(format, TOKENS, WIDTH)
    memory = noise(PAGES * 4 * page)
    width, stride = WIDTH if format in PLAIN else 0, 4 * page
    cache = smla.Cache(
        of(library, memory)[page : -2 * page],
        format,
        TOKENS,
        width=width,
        pages=PAGES,
        page_stride_bytes=stride,
        page_rows=9,
        scale=scale_of(format),
    )
    return cache, memory.reshape(PAGES, 4, page)[:, 1, : used_bytes(format)]


def unpadded(library, format):
    """Pages without the padding that some formats have."""
    record = sum(parts(format, WIDTH))
    memory = noise(PAGES * TOKENS * record)
    width = WIDTH if format in PLAIN else 0
    cache = smla.Cache(
        of(library, memory.reshape(PAGES, TOKENS, record)),
        format,
        TOKENS,
        width=width,
        scale=scale_of(format),
    )
    return cache, memory.reshape(PAGES, -1)


LAYOUTS = [flat, apart, in_a_pool, unpadded]


def pages_of(cache, used):
    """[pages, used]: the pages of a cache by its own numbers."""
    stride = cache.bytes // cache.pages
    memory = np.zeros(cache.bytes, np.uint8)
    shown = cache.array
    if shown.ndim > 1:  # by shape: the first dimension counts pages
        return np.stack([host(shown[page])[:used] for page in range(cache.pages)])
    memory[: host(shown).size] = host(shown)[: cache.bytes]
    return memory.reshape(cache.pages, stride)[:, :used]


def held_bytes(array):
    return array.nbytes if isinstance(array, np.ndarray) else array.numel() * array.element_size()


def grown(cache):
    cache.grow(cache.pages)  # nothing to do
    cache.grow(PAGES + 2)
    return cache


WAYS = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda cache: pickle.loads(pickle.dumps(cache)),
    "grow": lambda cache: grown(copy.copy(cache)),
    "grow a copy": lambda cache: grown(copy.deepcopy(cache)),
}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("format", FORMATS)
def test_contents(format, layout, way, library):
    cache, wanted = layout(library, format)
    before, array, wanted = bytes(cache.abi), cache.array, wanted.copy()
    got = WAYS[way](cache)
    pages = PAGES + 2 if "grow" in way else PAGES
    assert type(got) is smla.Cache and type(got.array) is type(array) and got.array.dtype == array.dtype
    assert (got.pages, got.page_tokens, got.width, got.format) == (pages, TOKENS, cache.width, cache.format)
    assert got.abi.page_rows == cache.abi.page_rows
    held = pages_of(got, wanted.shape[1])
    np.testing.assert_array_equal(held[:PAGES], wanted)
    assert not held[PAGES:].any()
    # Nothing between pages comes along: a layer of a pool does not copy its neighbours.
    assert held_bytes(got.array) <= pages * page_bytes(format, TOKENS, WIDTH)
    # Its own memory, and the old cache is as it was.
    got.array[...] = 0
    assert bytes(cache.abi) == before and cache.array is array
    np.testing.assert_array_equal(pages_of_source(layout, cache, wanted), wanted)


def pages_of_source(layout, cache, wanted):
    if layout is in_a_pool:
        stride = cache.abi.page_stride_bytes
        whole = host(cache.array)
        return np.stack([whole[page * stride :][: wanted.shape[1]] for page in range(PAGES)])
    return pages_of(cache, wanted.shape[1])


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("way", WAYS)
def test_strided_rows(library, way):
    """Rows with other values between them, which row_stride_bytes describes."""
    values = np.random.default_rng(1).standard_normal((PAGES * TOKENS, WIDTH + 4)).astype(np.float32)
    memory = of(library, values)
    options = {"width": WIDTH, "pages": PAGES, "row_stride_bytes": 4 * (WIDTH + 4)}
    got = WAYS[way](smla.Cache(memory, "row_f32", TOKENS, **options))
    rows = attended(got, range(PAGES * TOKENS))
    np.testing.assert_array_equal(rows, values[:, :WIDTH])


def attended(cache, rows):
    """Rows of a cache of row_f32, by calls that attend to one each."""
    listed = of_library(cache, np.array([[row] for row in rows], np.int32))
    q = of_library(cache, np.zeros((len(listed), 1, cache.width), np.float32))
    return np.asarray(smla.attend(q, cache, listed, softmax_scale=1.0).out)[:, 0]


def of_library(cache, array):
    return array if isinstance(cache.array, np.ndarray) else torch.from_numpy(array)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_server_grows_its_cache(library):
    """Tokens are written and read between growths; each is where it was."""
    cache = smla.Cache.empty("row_f32", 1, 4, width=8, like=of(library, np.zeros(1, np.float32)))
    values = np.random.default_rng(2).standard_normal((33, 8)).astype(np.float32)
    for token, value in enumerate(values):
        if token == cache.capacity:
            cache.grow(2 * cache.pages)
        smla.write_kv(of(library, value[None]), of(library, np.array([token])), cache)
    assert cache.pages == 16
    np.testing.assert_array_equal(attended(cache, range(33)), values)


def test_a_copy_shares_and_grow_parts():
    cache = smla.Cache(np.zeros((PAGES, TOKENS, WIDTH), np.float32), "row_f32", TOKENS)
    view, other = cache.array[1], copy.copy(cache)
    assert other.array is cache.array and other.abi is not cache.abi
    smla.write_kv(np.ones((1, WIDTH), np.float32), np.array([TOKENS]), other)
    assert (view[0] == 1).all() and (cache.array[1, 0] == 1).all()
    cache.grow(PAGES + 1)
    assert cache.array.shape == (PAGES + 1, TOKENS, WIDTH) and (cache.array[1, 0] == 1).all()
    smla.write_kv(np.full((1, WIDTH), 2, np.float32), np.array([TOKENS]), cache)
    assert (cache.array[1, 0] == 2).all() and (view[0] == 1).all() and (other.array[1, 0] == 1).all()


@pytest.mark.parametrize("library", LIBRARIES)
def test_scales(library):
    scale = of(library, np.full(1, 0.5, np.float32))
    cache = smla.Cache(of(library, noise(PAGES * TOKENS * 576)), "fp8_576", TOKENS, scale=scale)
    for got in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert got.layout["scale"] is not scale and float(got.layout["scale"][0]) == 0.5
        assert got.abi.scale_device not in (0, cache.abi.scale_device)
    shared = copy.copy(cache)
    shared.grow(PAGES + 1)
    assert float(shared.layout["scale"][0]) == 0.5 and shared.abi.scale_device == cache.abi.scale_device
    plain = smla.Cache(of(library, noise(PAGES * TOKENS * 576)), "fp8_576", TOKENS, scale=0.25)
    assert copy.deepcopy(plain).abi.scale == 0.25


@pytest.mark.parametrize("scale", [0, 0.0, -0.0, -1.0, np.nan, np.inf, np.float32(0)], ids=str)
def test_a_scale_that_is_wrong_stays_so(scale):
    """A copy does not turn it into 1, the scale that was left out: every call refuses it (contract, 1d)."""
    cache = smla.Cache(noise(PAGES * TOKENS * 512), "fp8_512", TOKENS, scale=scale)
    grown = copy.copy(cache)
    grown.grow(PAGES + 1)
    again = smla.Cache(cache.array, **cache.layout)
    for got in (again, copy.copy(cache), copy.deepcopy(cache), pickle.loads(pickle.dumps(cache)), grown):
        np.testing.assert_equal(got.abi.scale, float(scale))
        with pytest.raises(smla.InvalidArgument, match="scale"):
            smla.attend(np.ones((1, 1, 512), np.float32), got, np.zeros((1, 1), np.int32), softmax_scale=1.0)


def test_empty_caches_grow():
    cache = smla.Cache.empty("fp8_584", 0, 64)
    cache.grow(2)
    assert cache.pages == 2 and cache.bytes == 2 * 37440 and not cache.array.any()
    shaped = smla.Cache(np.zeros((0, 4, 8), np.float32), "row_f32", 4)
    shaped.grow(3)
    assert shaped.array.shape == (3, 4, 8) and shaped.pages == 3


def test_what_is_refused():
    cache = smla.Cache.empty("fp8_656", 3, 4)
    for pages in (2, -1, 3.5, "4", None, 2**63):
        with pytest.raises(smla.InvalidArgument) as caught:
            cache.grow(pages)
        assert caught.value.field == "pages"
    assert cache.pages == 3
    borrowed = smla.Cache(Exporter(np.zeros((3, 4, 8), np.float32)), "row_f32", 4)
    for call in (copy.deepcopy, pickle.dumps, lambda kept: kept.grow(4)):
        with pytest.raises(smla.InvalidArgument) as caught:
            call(borrowed)
        assert caught.value.field == "cache.data" and "NumPy, PyTorch or CuPy" in caught.value.wanted
        assert Exporter.__module__ in caught.value.got
    assert borrowed.pages == 3 and copy.copy(borrowed).array is borrowed.array


def test_memory_that_may_only_be_read():
    rows = np.frombuffer(np.arange(64, dtype=np.float32).tobytes(), np.float32).reshape(2, 4, 8)
    got = copy.deepcopy(smla.Cache(rows, "row_f32", 4))
    smla.write_kv(np.ones((1, 8), np.float32), np.array([7]), got)
    assert (got.array[1, 3] == 1).all() and got.array[1, 2, 0] == 48


def test_another_process_reads_the_pickle(tmp_path):
    cache, wanted = in_a_pool("numpy", "fp8_656")
    (tmp_path / "cache").write_bytes(pickle.dumps(cache))
    code = (
        "import pickle, sys; cache = pickle.load(open(sys.argv[1], 'rb')); "
        "print(cache.format.name, cache.pages, cache.page_tokens, cache.abi.page_rows, "
        "int(cache.array.astype('u8').sum()))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "cache"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
    )
    numbers = PAGES, TOKENS, 9, int(wanted.astype("u8").sum())
    assert shown.stdout.split() == ["FP8_656", *map(str, numbers)], shown


@pytest.mark.skipif(torch is None, reason="no PyTorch")
def test_a_module_with_a_cache_is_copied():
    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cache = smla.Cache(torch.zeros(PAGES, TOKENS, WIDTH), "row_f32", TOKENS)

    model = Attention()
    other = copy.deepcopy(model)
    smla.write_kv(torch.ones(1, WIDTH), torch.tensor([3]), other.cache)
    assert not model.cache.array.any() and (other.cache.array[0, 3] == 1).all()
