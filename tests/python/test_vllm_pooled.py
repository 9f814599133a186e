"""vLLM's indexer of pooled keys (GLM-5.3-Flash) on smla: kernels against float64, names that are replaced."""

import inspect
import sys
import types

import pytest

torch = pytest.importorskip("torch")

import smla
from smla.compat.vllm_ops.caches import index_cache
from smla.vllm import caches as caches_of_plugin
from smla.vllm import indexer_calls, pooled
from vllm_world import PLATFORM, normal
from vllm_world import vllm as vllm

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
BF16, POOL, PAGE = torch.bfloat16, 4, 8


def hadamard():
    matrix = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(7):
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / 128**0.5


def key_of(keys, scores, ape):
    """One pool's key in float64."""
    weights = (scores.double() + ape.double()).softmax(0)
    return (weights * keys.double()).sum(0) @ hadamard()


def written(cache, slot):
    """A row of the index cache: page of codes, then of scales."""
    page = cache[slot // PAGE].flatten()
    codes = page[: PAGE * 128].view(torch.float8_e4m3fn).view(PAGE, 128)
    return codes[slot % PAGE].double() * page[PAGE * 128 :].view(torch.float32)[slot % PAGE].double()


def close(got, wanted):
    """e4m3 with one scale, a power of two: within 2^-4 of each value, or half the smallest step."""
    bound = wanted.abs() * 2**-4 + wanted.abs().max() * 2**-15
    return ((got - wanted).abs() <= bound).all()


@pytest.mark.parametrize("device", DEVICES)
def test_prompts_write_the_pools_that_they_complete(device):
    rng = torch.Generator().manual_seed(0)
    keys, scores = (normal(rng, 5, POOL, 128, dtype=BF16) for _ in range(2))
    ape, loc = normal(rng, POOL, 128), torch.tensor([9, 0, -1, 17, 3])
    mask = torch.tensor([True, True, True, True, False])
    cache = torch.zeros(3, PAGE, 132, dtype=torch.uint8)
    given = [x.to(device) for x in (cache, keys, scores, ape, loc)]
    plain = given[1][:, 0].float(), None, given[4], given[0].clone()  # a call of the same layout, not rotated
    caches_of_plugin.write(smla.stages.write_index, *plain, index_cache)
    pooled.kpool_compress_and_write_cache(*given, pool_size=POOL, write_mask=mask.to(device))
    cache = given[0].cpu()
    for n, slot in enumerate(loc.tolist()):
        if slot >= 0 and mask[n]:
            assert close(written(cache, slot), key_of(keys[n], scores[n], ape)), n
    nonzero = [slot for slot in range(3 * PAGE) if written(cache, slot).any()]
    assert nonzero == [0, 9, 17]


def test_what_vllm_does_not_ask_for_is_refused():
    x = torch.zeros(1, POOL, 128, dtype=BF16)
    cache, ape, loc = torch.zeros(1, PAGE, 132, dtype=torch.uint8), x[0].float(), torch.zeros(1).long()
    for more in ({"return_compressed": True}, {"write_cache": False}, {"round_scale": False}):
        with pytest.raises(smla.Unsupported, match="kpool_compress_and_write_cache"):
            pooled.kpool_compress_and_write_cache(cache, x, x, ape, loc, POOL, **more)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ring", [POOL, 2 * POOL])
def test_decodes_complete_pools_of_earlier_steps(device, ring):
    """Two tokens a step, three requests, one of them padding in some steps; each has a page of the tail."""
    rng, steps, each = torch.Generator().manual_seed(ring), 6, 2
    first, pages = [3, 0, 6], [2, 0, 3]  # positions before the steps, pages of the tail
    keys, scores = (normal(rng, 3, 32, 128, dtype=BF16) for _ in range(2))
    tail = torch.full((4, 2, ring, 128), torch.nan, dtype=BF16)
    for r in range(3):
        for p in range(first[r]):  # as prompts leave it
            tail[pages[r], 0, p % ring], tail[pages[r], 1, p % ring] = keys[r, p], scores[r, p]
    tail, ape = tail.to(device), normal(rng, POOL, 128).to(device)
    cache = torch.zeros(3, PAGE, 132, dtype=torch.uint8, device=device)
    at, wanted = list(first), {}
    for step in range(steps):
        position, kept, slot = (torch.full((3, each), -1, dtype=torch.int32) for _ in range(3))
        key, score = (torch.full((3, each, 128), torch.nan, dtype=BF16) for _ in range(2))
        for r in range(3):
            for t in range(0 if r == 1 and step % 2 else each):
                p = at[r]
                position[r, t], kept[r, t] = p, pages[r] * ring + p % ring
                key[r, t], score[r, t] = keys[r, p], scores[r, p]
                if p % POOL == POOL - 1:
                    slot[r, t] = r * PAGE + p // POOL
                    wanted[int(slot[r, t])] = (r, p)
                at[r] += 1
        given = [x.to(device) for x in (kept, key, score)]
        rest = [x.to(device) for x in (slot, position)]
        pooled.kpool_decode_update_and_maybe_write_cache_batched(cache, tail, *given, ape, *rest, POOL)
    assert len(wanted) >= 7
    for row in range(3 * PAGE):
        got = written(cache.cpu(), row)
        if row in wanted:
            r, p = wanted[row]
            pool = slice(p - POOL + 1, p + 1)
            assert close(got, key_of(keys[r, pool], scores[r, pool], ape.cpu())), row
        else:
            assert not got.any()


@pytest.mark.parametrize("device", DEVICES)
def test_queries_are_rotated_and_quantised(device):
    q = normal(torch.Generator().manual_seed(1), 7, 128, dtype=BF16)
    codes, scale = pooled.fwht128_quant_fp8(q.to(device))
    assert codes.dtype is torch.float8_e4m3fn and codes.shape == (7, 128) and scale.shape == (7, 1)
    assert torch.equal(scale.log2().round().exp2(), scale)
    for got, wanted in zip(codes.cpu().double() * scale.cpu().double(), q.double() @ hadamard(), strict=True):
        assert close(got, wanted)


def theirs(*_, **__):
    raise AssertionError("vLLM's own")


@pytest.fixture
def model(vllm, monkeypatch):
    """Modules of GLM-5.3-Flash with the names of this version, or with none that smla knows."""
    facts = vllm.facts["pooled"] or {"names": ["has_deep_gemm"], "kernels": {}}
    names = {
        vllm.indexer.POOLED: facts["names"],
        **dict.fromkeys(vllm.indexer.POOLED_KERNELS, facts["kernels"]),
    }
    modules = {}
    for name, members in names.items():
        modules[name] = types.ModuleType(name)
        modules[name].__dict__.update(dict.fromkeys(members, theirs))
        monkeypatch.setitem(sys.modules, name, modules[name])
    return SimpleModel(vllm, *modules.values())


class SimpleModel:
    def __init__(self, vllm, step, *kernels):
        self.vllm, self.step, self.kernels = vllm, step, kernels

    def ours(self, module):
        mine = lambda x: getattr(x, "__module__", type(x).__module__).startswith("smla.")  # noqa: E731
        return {
            name for name, x in vars(module).items() if mine(x) or isinstance(x, indexer_calls.Operations)
        }


@pytest.mark.parametrize("gpu, scores, kernels", [((8, 0), 1, 1), ((8, 9), 1, 0), ((9, 0), 0, 0)])
def test_names_are_replaced_where_the_gpu_needs_it(model, monkeypatch, gpu, scores, kernels):
    monkeypatch.delenv("SMLA_VLLM_INDEXER", raising=False)
    PLATFORM.be(*gpu)
    for _ in range(2):
        model.vllm.indexer.install_model()
    facts = model.vllm.facts["pooled"]
    expected = set(facts["names"]) - {"get_dcp_group"} if facts and scores else set()
    assert model.ours(model.step) == expected
    for module in model.kernels:
        assert model.ours(module) == (set(facts["kernels"]) if facts and kernels else set())


def test_signatures_are_vllms(vllm):
    for name, parameters in (vllm.facts["pooled"] or {"kernels": {}})["kernels"].items():
        ours = inspect.signature(getattr(pooled, name)).parameters
        assert list(ours) == [text.partition("=")[0] for text in parameters]
    assert set((vllm.facts["pooled"] or {"kernels": set()})["kernels"]) <= set(vllm.indexer.POOLED_NAMES)
