"""Arrays whose memory is replaced or resized after smla has borrowed it: the old memory stays, or the call is
refused. Memory that was freed is never read.
"""

import gc

import numpy as np
import pytest
import smla
from golden_files import Golden
from smla._arrays import library_of
from smla.tensor import owner_of

try:
    import torch
except ImportError:
    torch = None

needs_torch = pytest.mark.skipif(torch is None, reason="no PyTorch")


# How the memory of a tensor of PyTorch is exchanged for another's.


def by_data(tensor, other):
    tensor.data = other


def by_set(tensor, other):
    with torch.no_grad():
        tensor.set_(other)


def by_set_of_an_alias(tensor, other):
    tensor.detach().set_(other)


WAYS = [by_data, by_set, by_set_of_an_alias]


def replaced(tensor, way):
    """Exchanges the memory of a tensor for ones of 3, and fills what that frees with sevens."""
    way(tensor, torch.full_like(tensor, 3))
    gc.collect()
    return [torch.full_like(tensor, 7) for _ in range(200)]


def attend(cache, attention=smla.attend):
    """The value of the cache's first row, which all of its rows share."""
    q = torch.ones(1, 2, cache.width)
    return float(attention(q, cache, torch.zeros(1, 1, dtype=torch.int32), softmax_scale=0.1).out[0, 0, 0])


def of_cache():
    data = torch.ones(2, 4, 8)
    cache = smla.Cache(data, "row_f32", 4)
    return data, lambda: attend(cache)


def of_cache_over_named_memory():
    data = torch.ones(2, 4, 8)
    cache = smla.Cache(smla.tensor(data.view(torch.int32), "f32"), "row_f32", 4)
    return data, lambda: attend(cache)


def of_cache_in_an_operator():
    import smla.torch

    data = torch.ones(2, 4, 8)
    cache = smla.Cache(data, "row_f32", 4)
    return data, lambda: attend(cache, smla.torch.attend)


def of_a_cache_that_grew():
    data = torch.ones(2, 4, 8)
    cache = smla.Cache(data, "row_f32", 4)

    def value():
        cache.grow(cache.pages + 1)
        return attend(cache)

    return data, value


def of_scale():
    scale = torch.ones(1)
    codes = torch.full((1, 4, 576), 0x38, dtype=torch.uint8)  # 1 in e4m3
    cache = smla.Cache(codes, "fp8_576", 4, scale=scale)
    return scale, lambda: attend(cache)


def of_scale_in_an_operator():
    import smla.torch

    scale = torch.ones(1)
    codes = torch.full((1, 4, 576), 0x38, dtype=torch.uint8)
    cache = smla.Cache(codes, "fp8_576", 4, scale=scale)
    return scale, lambda: attend(cache, smla.torch.attend)


def of_view():
    data = torch.ones(1, 1, 8)
    view = smla.tensor(data, "f32")
    return data, lambda: float(smla.project(view, torch.ones(1, 1, 8))[0, 0, 0]) / 8


def of_view_of_a_view():
    data = torch.ones(1, 1, 8)
    view = smla.tensor(smla.tensor(data.view(torch.int32), "f32"), "f32")
    return data, lambda: float(smla.project(view, torch.ones(1, 1, 8))[0, 0, 0]) / 8


def of_out():
    """An output: what the call writes is in the old memory, which the view still shows."""
    data = torch.ones(1, 1, 8)
    view = smla.tensor(data, "f32")

    def value():
        assert smla.norm(torch.ones(1, 1, 8), eps=1e-6, out=view) is view.array
        return round(float(view.array[0, 0, 0]), 3)

    return data, value


def of_block_table():
    table = torch.ones(1, 16, dtype=torch.int32)
    sizes = {"heads": 16, "max_tokens": 4, "max_requests": 2, "max_seq_len": 1024, "topk": 64}
    metadata = smla.Backend("FLASHMLA_SPARSE", "dsa", **sizes, softmax_scale=0.1).metadata()
    starts, lens = np.array([0, 1], np.int32), np.array([1], np.int32)
    metadata.build(starts, lens, primary=smla.PlanGroup(table, page_tokens=64))
    return table, lambda: float(metadata.field("block_table")[0, 0])


BORROWS = [
    of_cache,
    of_cache_over_named_memory,
    of_cache_in_an_operator,
    of_a_cache_that_grew,
    of_scale,
    of_scale_in_an_operator,
    of_view,
    of_view_of_a_view,
    of_out,
    of_block_table,
]


@needs_torch
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("borrow", BORROWS)
def test_tensors_whose_memory_is_replaced(borrow, way):
    tensor, value = borrow()
    assert value() == 1
    kept = replaced(tensor, way)
    if way is not by_set_of_an_alias:
        assert float(tensor.flatten()[0]) == 3
    assert value() == 1 and len(kept) == 200


@needs_torch
@pytest.mark.parametrize(
    "borrow", [of_cache, of_cache_over_named_memory, of_scale, of_view, of_view_of_a_view, of_out]
)
def test_tensors_whose_storage_is_resized_in_place(borrow):
    """Nothing can keep that memory: the next use is refused."""
    tensor, value = borrow()
    assert value() == 1
    for size in (1 << 20, 0):
        tensor.untyped_storage().resize_(size)
        kept = [torch.full_like(tensor, 7) for _ in range(200)]
        with pytest.raises(smla.InvalidArgument, match="storage was resized in place"):
            value()
        assert kept


def over_cache(data):
    cache = smla.Cache(data.view(-1, 4, 8), "row_f32", 4)
    return lambda: attend(cache)


def over_scale(data):
    cache = smla.Cache(torch.full((1, 4, 576), 0x38, dtype=torch.uint8), "fp8_576", 4, scale=data[-1:])
    return lambda: attend(cache)


def over_view(data):
    view = smla.tensor(data.view(1, -1, 8)[:, -1:], "f32")
    return lambda: smla.project(view, torch.ones(1, 1, 8))


def over_out(data):
    view = smla.tensor(data.view(1, -1, 8)[:, -1:], "f32")
    return lambda: smla.norm(torch.ones(1, 1, 8), eps=1e-6, out=view)


@needs_torch
@pytest.mark.parametrize("borrow", [over_cache, over_scale, over_view, over_out])
def test_a_storage_that_shrinks_at_its_address(borrow):
    """40 MiB are a mapping of their own, and the same mapping without the last element gets the same place,
    unless the program has freed one above. Earlier tensors stay alive and fill such places.
    """
    count, tensors = 10 << 20, []
    for _ in range(50):
        tensors.append(torch.empty(count))
        address, use, storage = tensors[-1].data_ptr(), borrow(tensors[-1]), tensors[-1].untyped_storage()
        storage.resize_(0)
        storage.resize_(4 * count - 4)
        if tensors[-1].data_ptr() == address:
            break
    else:
        pytest.skip("the allocator gives no address twice")
    with pytest.raises(smla.InvalidArgument, match="storage was resized in place"):
        use()


@needs_torch
@pytest.mark.parametrize("borrow", [of_cache_in_an_operator, of_scale_in_an_operator])
def test_operators_read_a_storage_that_was_resized_where_it_is_now(borrow):
    tensor, value = borrow()
    assert value() == 1
    tensor.untyped_storage().resize_(1 << 20)
    kept = [torch.full_like(tensor, 7) for _ in range(200)]
    assert value() == 1 and kept
    tensor.untyped_storage().resize_(0)
    with pytest.raises(smla.InvalidArgument):
        value()


@needs_torch
@pytest.mark.parametrize("way", WAYS)
def test_weights_whose_memory_is_replaced(way):
    golden = Golden("D2")
    names = {name[2:]: torch.tensor(golden[name]) for name in golden.names("w.")}
    layer = smla.Layer.from_tensors(golden.config(), names, golden.layers[0]["layer_idx"])
    assert layer.info["borrowed_bytes"] > 0
    hidden = np.ones((3, layer.info["hidden_size"]), np.float32)
    before = layer.session().forward(hidden)
    kept = [replaced(tensor, way) for tensor in names.values()]
    np.testing.assert_array_equal(layer.session().forward(hidden), before)
    assert kept


def numpy_borrows():
    data, scale, codes = (
        np.ones((2, 4, 8), np.float32),
        np.ones(1, np.float32),
        np.zeros((1, 4, 576), np.uint8),
    )
    yield data, smla.Cache(data, "row_f32", 4)
    data = np.ones((2, 4, 8), np.float32)
    yield data, smla.Cache(data[1:], "row_f32", 4)  # a view, whose memory is data's
    yield scale, smla.Cache(codes, "fp8_576", 4, scale=scale)
    data = np.ones((2, 4), np.float32)
    yield data, smla.tensor(data, "f32")
    data = np.ones((2, 4), np.float32)
    yield data, owner_of(data, "table")


@pytest.mark.parametrize("i", range(5))
def test_arrays_of_numpy_cannot_be_resized_while_they_are_borrowed(i):
    array, borrow = list(numpy_borrows())[i]
    shape = array.shape
    with pytest.raises(ValueError, match="cannot resize"):
        array.resize((1000, 1000), refcheck=False)
    assert array.shape == shape
    del borrow
    gc.collect()
    array.resize((2, 2), refcheck=False)


def test_what_owns_memory_in_each_library():
    """For CuPy, the address is the array's pointer at the time of the call, even if array.data changes."""
    from smla._arrays.cupy import CuPy

    class Data:
        ptr = 64

    class Array:
        data, itemsize, size, shape, strides, dtype = Data(), 4, 8, (8,), (4,), np.dtype("float32")
        device = type("Device", (), {"id": 0})

    array = Array()
    memory = CuPy().memory(array, "x")
    assert memory.owner is array.data and memory.array is array and memory.address == 64
    if torch is not None:
        tensor = torch.ones(3)
        memory = library_of(tensor).memory(tensor, "x")
        assert memory.owner is memory.array is not tensor and memory.address == tensor.data_ptr()
