"""A step of a layer of V3.2 or GLM-5.3-Flash through the plug-in for vLLM, checked against float64."""

from types import SimpleNamespace

import pytest
from vllm_world import batch_of, builder, impl, normal, positions_of

torch = pytest.importorskip("torch")

E4M3 = torch.float8_e4m3fn
KINDS = [("auto", torch.bfloat16), ("auto", torch.float32), ("bfloat16", torch.bfloat16)]
KINDS += [("fp8", torch.bfloat16), ("fp8_e4m3", torch.bfloat16), ("fp8_ds_mla", torch.bfloat16)]


def decoded(cache, kind, k_scale):
    """The cache's rows in float64, decoded by hand."""
    rows = cache.cpu().flatten(0, 1)
    if kind == "fp8_ds_mla":
        codes = rows[:, :512].contiguous().view(E4M3).double()
        scale = rows[:, 512:528].contiguous().view(torch.float32).double().repeat_interleave(128, -1)
        return torch.cat([codes * scale, rows[:, 528:].contiguous().view(torch.bfloat16).double()], -1)
    if kind in ("fp8", "fp8_e4m3"):
        return rows.view(E4M3).double() * k_scale
    return rows.double()


def attention(q, keys, rows, scale, sink=None):
    """[H,Dv] of one token over some keys, in float64; no keys: 0."""
    if not rows:
        return torch.zeros(q.shape[0], 512, dtype=torch.float64)
    logits = scale * q.double() @ keys[rows].T
    top = logits.amax(-1, keepdim=True)
    weights = (logits - top).exp()
    below = weights.sum(-1, keepdim=True)
    if sink is not None:
        below = below + (sink.double()[:, None] - top).exp()
    return weights / below @ keys[rows][:, :512]


class Step:
    """A layer's step: batch, cache with the keys of earlier steps, selection, and the layer's objects.

    rope: channels behind the latent. width: of the selection. apart: rows of other layers between two pages.
    """

    def __init__(
        self, vllm, device, kind, dtype, page, *, seed=0, rope=64, width=13, heads=5, apart=0, **more
    ):
        rng, self.kind, self.k_scale = torch.Generator().manual_seed(seed), kind, 0.05
        self.common, self.tokens, self.table, lens = batch_of(rng, page, device, **more)
        self.page, count = page, self.common.num_actual_tokens
        topk = positions_of(rng, self.tokens, width, 64)
        topk[1] = -1  # a token that attends to nothing
        self.topk = topk.to(device)
        pages, value = int(self.table.max()) + 2, torch.uint8 if kind.startswith("fp8") else dtype
        record = 656 if kind == "fp8_ds_mla" else 512 + rope
        whole = torch.zeros(pages, page + apart, record, dtype=value, device=device)
        if value is not torch.uint8:
            whole.fill_(torch.nan)  # what nobody may read
        self.cache = whole[:, :page]
        self.layer = SimpleNamespace(_k_scale=torch.tensor(self.k_scale, device=device))
        dims = {"head_size": 512 + rope, "qk_rope_head_dim": rope}
        self.impl = impl(vllm, heads=heads, topk=self.topk, kv_cache_dtype=kind, **dims)
        every = [(r, p) for r in range(len(lens)) for p in range(int(lens[r]))]  # as earlier steps would have
        slots = torch.tensor([self.row(r, p) for r, p in every], device=device)
        keys, tail = (normal(rng, len(every), *x, dtype=dtype).to(device) for x in ((512,), (1, rope)))
        self.impl.do_kv_cache_update(keys, tail, self.cache, slots[:, None], kind, self.layer._k_scale, False)
        if kind == "fp8_ds_mla" and not rope:
            assert (self.cache[..., 528:] == 0).all()  # as vLLM's own backend has it
        self.metadata = builder(vllm, page, device).build(0, self.common)
        parts = (normal(rng, count, heads, n, dtype=dtype).to(device) for n in (512, rope))
        self.q = tuple(parts)
        self.values = decoded(self.cache, kind, torch.tensor(self.k_scale).double())

    def row(self, request, position):
        return int(self.table[request, position // self.page]) * self.page + position % self.page

    def run(self, q=None):
        rows = self.cache.view(E4M3) if self.kind in ("fp8", "fp8_e4m3") else self.cache  # as the layer does
        return self.impl.forward_mqa(self.q if q is None else q, rows, self.metadata, self.layer)

    def check(self, out):
        """Compares the output of the real tokens with attention in float64."""
        bound = 1e-5 if out.dtype is torch.float32 else 2**-6
        flat = torch.cat(self.q, -1).cpu()
        width = flat.shape[-1]
        for t, (r, _) in enumerate(self.tokens):
            listed = [self.row(r, p) for p in self.topk[t].tolist() if p >= 0]
            wanted = attention(flat[t], self.values[:, :width], listed, 192**-0.5)
            assert torch.allclose(out[t].cpu().double(), wanted, rtol=bound, atol=bound), t
        assert out.isfinite().all()  # padding too
