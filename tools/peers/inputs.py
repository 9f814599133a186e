"""Random inputs on a device, decoded records for the check, and errors relative to f64."""

import random

import smla
import torch

RECORDS = {576: ("fp8_656", 656), 512: ("fp8_584", 584)}  # by width: format, bytes per token
TOKENS_CHECKED = 6
WRONG = 1e-2  # a result is wrong above this relative error of attention outputs; bf16 gives 2e-3


class Inputs:
    """Seeded random tensors. Large caches are reused by following rows that need the same ones."""

    def __init__(self, device):
        self.device = device
        self._kept = {}

    def generator(self, seed):
        return torch.Generator(device=self.device).manual_seed(seed)

    def normal(self, *shape, seed=1, dtype=torch.bfloat16):
        return torch.randn(*shape, generator=self.generator(seed), device=self.device, dtype=dtype)

    def integers(self, low, high, *shape, seed=1):
        """Returns random i32 values in [low, high)."""
        return torch.randint(
            low, high, shape, generator=self.generator(seed), device=self.device, dtype=torch.int32
        )

    def full(self, value, *shape, dtype=torch.int32):
        return torch.full(shape, value, device=self.device, dtype=dtype)

    def arange(self, n, dtype=torch.int32):
        return torch.arange(n, device=self.device, dtype=dtype)

    def keep(self, key, make, most=3):
        if key not in self._kept:
            while len(self._kept) >= most:
                self._kept.pop(next(iter(self._kept)))
                if self.device == "cuda":
                    torch.cuda.empty_cache()
            self._kept[key] = make()
        return self._kept[key]

    def packed_cache(self, width, pages, page, seed=2):
        """Returns a cache of fp8 records that smla.write_kv has written: [pages,page,1,bytes]."""
        return self.keep(("packed", width, pages, page), lambda: self._packed_cache(width, pages, page, seed))

    def _packed_cache(self, width, pages, page, seed):
        format, record = RECORDS[width]
        stride = page * record
        if width == 512:
            stride = -(-stride // 576) * 576
        data = torch.empty(pages, stride, device=self.device, dtype=torch.uint8)
        cache = smla.Cache(data, format, page)
        step = max(1, (1 << 18) // page)
        for first in range(0, pages, step):
            rows = min(step, pages - first) * page
            values = (self.normal(rows, width, seed=seed + first) / 10).clamp_(-1, 1)
            slots = torch.arange(first * page, first * page + rows, device=self.device)
            latent, rope = (values[:, :512], values[:, 512:]) if width == 576 else (values, None)
            smla.write_kv(latent.contiguous(), slots, cache, tail=None if rope is None else rope.contiguous())
        return data.as_strided((pages, page, 1, record), (stride, record, record, 1))

    def lists(self, low, count, k, kind="random", seed=1):
        """Returns row lists [T,k] i32 within [low[t], low[t] + count[t]), of a kind named in shapes.json."""
        uniform = torch.rand(len(low), k, generator=self.generator(seed), device=self.device)
        rows = low[:, None] + (uniform * count[:, None]).long().clamp(max=(count - 1)[:, None])
        if kind == "masked half":
            again = torch.rand(len(low), k, generator=self.generator(seed + 1), device=self.device)
            rows = rows.masked_fill(again < 0.5, -1)
        elif kind == "masked tail":
            rows[:, k // 2 :] = -1
        elif kind == "some empty":
            rows[::3] = -1
        elif kind == "sorted":
            rows = rows.sort(-1).values
        elif kind == "one row per request":
            rows[:] = rows[:, :1].clone()
        elif kind == "all row 0":
            rows[:] = 0
        elif kind == "half one row":
            rows[:, k // 2 :] = low[:, None]
        elif kind.startswith("each row "):  # "each row 4 times"
            times = int(kind.split()[2])
            rows = rows[:, : k // times].repeat_interleave(times, 1)
        elif kind == "64 hot rows":
            rows = low[:, None] + (uniform * 64).long()
        elif kind == "short contexts":
            columns = torch.arange(k, device=self.device)[None]
            listed = torch.where(columns < count[:, None], low[:, None] + columns, -1)
            rows = torch.where((count < k)[:, None], listed, rows)
        elif kind != "random":
            raise ValueError(f"no kind of lists {kind!r}")
        return rows.int().contiguous()

    def lengths(self, kind, rows, k, seed=11):
        """Returns the number of valid entries of each list: [rows] i32, or None."""
        if kind is None:
            return None
        if kind == "random":
            return self.integers(1, k + 1, rows, seed=seed)
        if kind == "short":
            return self.full(100, rows)
        if kind == "causal":
            return (self.arange(rows) + 1).clamp(max=k)
        if kind != "one long":
            raise ValueError(f"no kind of lengths {kind!r}")
        found = self.full(64, rows)
        found[rows // 2] = k
        return found


def padded(tensor, size, dim, value=0):
    """Returns a contiguous copy of the tensor with `dim` extended to `size`."""
    if tensor.shape[dim] == size:
        return tensor.contiguous()
    shape = list(tensor.shape)
    shape[dim] = size - shape[dim]
    return torch.cat([tensor, tensor.new_full(shape, value)], dim).contiguous()


def strided(tensor):
    """Returns the same values with gaps in every dimension, like the tensors in FlashMLA's tests."""
    shape = [size + (128 if dim == tensor.ndim - 1 else 1) for dim, size in enumerate(tensor.shape)]
    view = tensor.new_empty(shape)[tuple(slice(size) for size in tensor.shape)]
    return view.copy_(tensor)


def decoded(cache, rows):
    """Returns rows of a packed cache in f64. This decoder is independent of the measured library."""
    rows = rows.long()
    page, record = cache.shape[1], cache.shape[3]
    base = cache.as_strided((cache.stride(0) * cache.shape[0],), (1,))
    if record == 656:
        data = base.view(-1, 656)[rows]
        scales = data[:, 512:528].contiguous().view(torch.float32).double().repeat_interleave(128, 1)
        codes, rope = data[:, :512], data[:, 528:]
    else:
        start = rows // page * cache.stride(0)
        data = base[(start + rows % page * 576)[:, None] + torch.arange(576, device=rows.device)]
        at = (start + page * 576 + rows % page * 8)[:, None] + torch.arange(7, device=rows.device)
        scales = torch.exp2(base[at].double() - 127).repeat_interleave(64, 1)
        codes, rope = data[:, :448], data[:, 448:]
    codes = codes.contiguous().view(torch.float8_e4m3fn).double()
    return torch.cat([codes * scales, rope.contiguous().view(torch.bfloat16).double()], 1)


def sample(count, most=TOKENS_CHECKED):
    if count <= most:
        return list(range(count))
    return sorted({0, count - 1, *random.Random(5).sample(range(count), most - 2)})


def attention(q, keys, scale, sink):
    """Returns out [H,512] of one token in f64. keys: [n,D] f64, the rows of all its lists."""
    if len(keys) == 0:
        return torch.zeros(q.shape[0], 512, dtype=torch.float64, device=q.device)
    logits = q.double() @ keys.T * scale
    lse = torch.logsumexp(logits, -1)
    out = torch.exp(logits - lse[:, None]) @ keys[:, :512]
    return out if sink is None else out / (1 + torch.exp(sink.double() - lse))[:, None]


def relative(got, wanted):
    """Returns the relative L2 error; infinity if any value is NaN."""
    got, wanted = got.double(), wanted.double()
    error = (
        torch.linalg.vector_norm(got - wanted) / torch.linalg.vector_norm(wanted).clamp_min(1e-30)
    ).item()
    return error if error == error else float("inf")


def outputs_check(tokens, heads, reference):
    """Returns the check of attention results, whose first element is [...,H,512]. It computes the errors of
    both sides relative to f64 for a few tokens, and the difference between the sides for all tokens."""

    def check(peer, ours):
        peer, ours = (each[0].reshape(tokens, -1, each[0].shape[-1])[:, :heads] for each in (peer, ours))
        chosen = sample(tokens)
        wanted = torch.stack([reference(token) for token in chosen])
        errors = [relative(each[chosen], wanted) for each in (peer, ours)]
        return {"errors": errors, "difference": relative(ours, peer), "limit": WRONG}

    return check
