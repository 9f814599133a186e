"""Arrays for the tests of smla.rows: hostile, strided, and of both libraries."""

import numpy as np

INT32_MAX, INT32_MIN = 2**31 - 1, -(2**31)


def i32(values):
    return np.asarray(values, np.int32)


def both_libraries(**arrays):
    """The arrays as NumPy's, and as PyTorch's where it is there."""
    yield arrays
    try:
        import torch
    except ImportError:
        return
    yield {name: None if a is None else torch.from_numpy(np.array(a)) for name, a in arrays.items()}


def hostile(random, shape, most, holes=0.3):
    """Positions up to a little past `most`, with holes of every kind."""
    out = random.integers(0, most + 2, shape)
    kinds = random.choice([-1, INT32_MIN, -2, INT32_MAX, 2**30], shape)
    return i32(np.where(random.random(shape) < holes, kinds, out))


def strided(array):
    """The same values, every second one of a wider array of poison."""
    poison = 201 if array.dtype == np.uint8 else -777
    wide = np.full((*array.shape[:-1], 2 * array.shape[-1] + 1), poison, array.dtype)
    wide[..., 1::2] = array
    return wide[..., 1::2]
