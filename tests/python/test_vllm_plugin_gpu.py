"""Steps of the plug-in for vLLM on a GPU against the same classes on a CPU: eager, captured, replayed."""

from types import SimpleNamespace
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

from vllm_world import FACTS, batch_of, builder, decodes_of, impl, normal, positions_of
from vllm_world import vllm as vllm

VERSIONS = {facts["version"]: facts for facts in (FACTS[0], FACTS[-1])}
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.parametrize("vllm", VERSIONS.values(), indirect=True, ids=VERSIONS),
]
DEVICE = "cuda"
PAGE, LIST, ROWS = 16, 13, 64


class Kind(NamedTuple):
    """A kind of layer: --kv-cache-dtype, the dtypes of queries and of the cache, heads."""

    cache: str
    dtype: torch.dtype
    store: torch.dtype
    heads: int = 5


PLAIN = Kind("auto", torch.bfloat16, torch.bfloat16)
KINDS = {
    "auto-f32": Kind("auto", torch.float32, torch.float32),
    "auto-bf16": PLAIN,
    "fp8_e4m3": Kind("fp8_e4m3", torch.bfloat16, torch.uint8),
    "fp8_ds_mla": Kind("fp8_ds_mla", torch.bfloat16, torch.uint8),
    "fp8_ds_mla-64": Kind("fp8_ds_mla", torch.bfloat16, torch.uint8, 64),  # Hopper's kernel takes it
}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def copied(common, device):
    """A batch with its tensors on a device."""
    place = lambda x: x.to(device, copy=True) if isinstance(x, torch.Tensor) else x  # noqa: E731
    return SimpleNamespace(**{name: place(value) for name, value in vars(common).items()})


def overwrite(buffers, values):
    """New values in the memory of the old ones, which captured graphs read."""
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            buffers[name].copy_(value)


class Side:
    """The layer on one device, with the buffers of its steps: batch, queries, keys, selection, cache."""

    def __init__(self, vllm, device, kind, common, inputs, cache):
        self.device, self.kind, self.common = device, kind, copied(common, device)
        self.inputs = {name: value.to(device, copy=True) for name, value in inputs.items()}
        self.cache = cache.to(device, copy=True)
        self.layer = SimpleNamespace(_k_scale=torch.tensor(0.05, device=device))
        self.impl = impl(vllm, heads=kind.heads, topk=self.inputs["topk"], kv_cache_dtype=kind.cache)
        self.builder = builder(vllm, PAGE, device)
        self.build()

    def build(self):
        self.metadata = self.builder.build(0, self.common)

    def write(self):
        keys, rope = self.inputs["keys"], self.inputs["rope"]
        slots = self.metadata.slot_mapping
        self.impl.do_kv_cache_update(keys, rope, self.cache, slots, self.kind.cache, self.layer._k_scale)

    def attend(self):
        rows = self.cache.view(torch.float8_e4m3fn) if self.kind.cache == "fp8_e4m3" else self.cache
        q = self.inputs["q"], self.inputs["q_rope"]
        return self.impl.forward_mqa(q, rows, self.metadata, self.layer)[0]

    def step(self):
        self.write()
        return self.attend()


def inputs_of(rng, common, tokens, kind):
    count, dtype = common.num_actual_tokens, kind.dtype
    return {
        "q": normal(rng, count, kind.heads, 512, dtype=dtype),
        "q_rope": normal(rng, count, kind.heads, 64, dtype=dtype),
        "keys": normal(rng, count, 512, dtype=dtype),
        "rope": normal(rng, count, 1, 64, dtype=dtype),
        "topk": positions_of(rng, tokens, LIST, ROWS),
    }


def filled_cache(vllm, rng, common, kind):
    """Every row written, on the CPU: records of fp8 have no other valid bytes."""
    pages = int(common.block_table_tensor.max()) + 2
    shape = vllm.backend.SmlaSparseBackend.get_kv_cache_shape(pages, PAGE, 1, 576, kind.cache)
    cache = torch.zeros(shape, dtype=kind.store)
    keys, rope = (normal(rng, pages * PAGE, *row, dtype=kind.dtype) for row in ((512,), (1, 64)))
    writer, slots = impl(vllm, kv_cache_dtype=kind.cache), torch.arange(pages * PAGE)
    writer.do_kv_cache_update(keys, rope, cache, slots, kind.cache, torch.tensor(0.05))
    return cache


def sides(vllm, rng, batch, kind):
    """The same step on the CPU and on the GPU."""
    common, tokens = batch
    vllm.config.parallel_config.heads = kind.heads
    inputs = inputs_of(rng, common, tokens, kind)
    cache = filled_cache(vllm, rng, common, kind)
    return [Side(vllm, device, kind, common, inputs, cache) for device in ("cpu", DEVICE)]


def check(vllm, host, gpu, out, real):
    """`out` of the GPU against the CPU's, over the bytes of the GPU's cache.

    Each is within 1e-5 (f32) or 2^-6 of attention in float64 (test_vllm_plugin_steps.py), so two are within
    twice that. Padding is 0 on both; with metadata of vLLM's class, it is any finite number.
    """
    if host.kind.cache == "auto":  # a copy of the keys
        host.write()
        assert torch.equal(host.cache, gpu.cache.cpu())
    host.cache.copy_(gpu.cache)
    wanted = host.attend()
    bound = 2e-5 if wanted.dtype is torch.float32 else 2**-5
    torch.testing.assert_close(out.cpu(), wanted, rtol=bound, atol=bound)
    assert wanted[:real].any() and out.isfinite().all()
    if vllm.facts["parents"] is None:
        assert not out[real:].any()


@kinds
def test_decodes_prefill_and_padding(vllm, kind):
    rng = torch.Generator().manual_seed(1)
    common, tokens, _, _ = batch_of(rng, PAGE, "cpu", queries=(1, 2, 0, 1, 20), padding=3)
    host, gpu = sides(vllm, rng, (common, tokens), kind)
    check(vllm, host, gpu, gpu.step(), len(tokens))


def captured(run):
    """A graph of run(), which ran twice before, and what it gives."""
    for _ in range(2):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    return graph, out


@kinds
def test_a_captured_forward_follows_batches_built_before_each_replay(vllm, kind):
    """As vLLM does: the builder fills the same buffers anew, and the graph reads them."""
    if vllm.facts["parents"] is not None:
        pytest.skip("the mocks of vLLM's class run on the host; vllm_check runs the class itself in graphs")
    rng = torch.Generator().manual_seed(2)
    common, tokens = decodes_of(rng, PAGE, live=6)
    host, gpu = sides(vllm, rng, (common, tokens), kind)
    graph, out = captured(gpu.step)
    host.write()
    for live in (6, 4, 1, 5):
        common, tokens = decodes_of(rng, PAGE, live)
        for side in (host, gpu):
            overwrite(vars(side.common), vars(common))
            side.build()
        inputs = inputs_of(rng, common, tokens, kind)
        overwrite(host.inputs, inputs)
        overwrite(gpu.inputs, inputs)
        out.fill_(torch.nan)
        graph.replay()
        check(vllm, host, gpu, out, len(tokens))
        assert torch.equal(out, gpu.attend())  # eager


def test_a_captured_build_follows_the_buffers_of_the_batch(vllm):
    if vllm.facts["parents"] is not None:
        pytest.skip("the mocks of vLLM's class run on the host; vllm_check runs the class itself in graphs")
    rng = torch.Generator().manual_seed(3)
    common, tokens = decodes_of(rng, PAGE, live=6)
    host, gpu = sides(vllm, rng, (common, tokens), PLAIN)

    def run():
        gpu.build()
        return gpu.step()

    graph, out = captured(run)
    host.write()
    for live in (3, 6, 2):
        common, tokens = decodes_of(rng, PAGE, live)
        for side in (host, gpu):
            overwrite(vars(side.common), vars(common))
        host.build()
        inputs = inputs_of(rng, common, tokens, PLAIN)
        overwrite(host.inputs, inputs)
        overwrite(gpu.inputs, inputs)
        graph.replay()
        check(vllm, host, gpu, out, len(tokens))


def test_a_step_stays_on_the_current_stream_and_waits_for_nothing(vllm):
    if vllm.facts["parents"] is not None:
        pytest.skip("the mocks of vLLM's class run on the host; vllm_check runs the class itself in graphs")
    rng = torch.Generator().manual_seed(4)
    common, tokens = decodes_of(rng, PAGE, live=6)
    host, gpu = sides(vllm, rng, (common, tokens), PLAIN)
    common, tokens = decodes_of(rng, PAGE, live=5)
    later = copied(common, DEVICE)
    stream, woken = torch.cuda.Stream(), torch.cuda.Event()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(2):  # memory and kernels are there afterwards
            gpu.build()
            gpu.step()
        torch.cuda._sleep(int(1e9))  # cycles: about half a second
        woken.record()
        overwrite(vars(gpu.common), vars(later))
        gpu.build()
        out = gpu.step()
        assert not woken.query()
    stream.synchronize()
    host.write()
    overwrite(vars(host.common), vars(common))
    host.build()
    wanted = host.step()
    torch.testing.assert_close(out.cpu(), wanted, rtol=2**-5, atol=2**-5)
    assert not out[len(tokens) :].any()
