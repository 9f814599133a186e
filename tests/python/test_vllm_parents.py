"""Steps on vLLM's base classes (0.33 and later), which find the rows: smla's part is attention to them."""

import math
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import smla
from smla.vllm import attend as attend_of_plugin
from smla.vllm import caches as caches_of_plugin
from vllm_parents import HotCache
from vllm_steps import KINDS, Step, attention
from vllm_world import batch_of, builder, impl, normal, positions_of
from vllm_world import with_kernel as with_kernel
from vllm_world import with_parents as with_parents

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
GLM = {"rope": 0, "width": 128, "heads": 4}  # GLM-5.3-Flash: no rope, lists of topk + kpool - 1 up to 128


@pytest.fixture
def vllm(with_kernel, monkeypatch):
    """vLLM's class finds the rows on a CPU too."""
    monkeypatch.setattr(with_kernel.impl, "_finds_rows", lambda cache: True)
    return with_kernel


def kernel_calls(step, monkeypatch):
    """What vLLM's class hands to smla from now on."""
    made, theirs = [], step.impl._forward_mqa_kernel

    def call(q, cache, rows, counts, **named):
        made.append(SimpleNamespace(rows=rows, counts=counts, cache=cache, **named))
        return theirs(q, cache, rows, counts, **named)

    monkeypatch.setattr(step.impl, "_forward_mqa_kernel", call)
    return made


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [{}, GLM], ids=["V3.2", "GLM-5.3-Flash"])
@pytest.mark.parametrize("kind, dtype", KINDS, ids=lambda x: str(x).removeprefix("torch."))
@pytest.mark.parametrize("page, apart", [(64, 0), (16, 24), (16, 32)])
def test_decodes_and_prefill(vllm, monkeypatch, device, kind, dtype, shape, page, apart):
    """Rows behind the counted ones name no row of the cache. Other layers' rows may be between pages."""
    step = Step(vllm, device, kind, dtype, page, apart=apart, **shape)
    made = kernel_calls(step, monkeypatch)
    out, lse = step.run()
    assert out.shape == (step.common.num_actual_tokens, step.q[0].shape[1], 512) and lse is None
    step.check(out)
    (call,) = made
    assert call.counts.tolist()[: len(step.tokens)] == (step.topk >= 0).sum(1)[: len(step.tokens)].tolist()
    assert call.counts[1] == 0 and (out[1] == 0).all()
    assert torch.equal(step.run(torch.cat(step.q, -1))[0], out)


def test_nothing_behind_the_counts_is_read(vllm):
    """Also where it names a row: the count ends the list."""
    rng, page = torch.Generator().manual_seed(2), 16
    cache, q = normal(rng, 4, page, 576), normal(rng, 3, 5, 576)
    cache[3] = math.nan
    rows = torch.full((3, 7), 3 * page, dtype=torch.int32)
    rows[:, :2] = torch.tensor([[5, 9], [0, -1], [1, 2]])
    counts = torch.tensor([2, 2, 0], dtype=torch.int32)
    ours, layer = impl(vllm), SimpleNamespace(_k_scale=torch.ones(1))
    out, _ = ours._forward_mqa_kernel(q, cache, rows, counts, layer=layer, block_size=page, is_decode=True)
    flat = cache.flatten(0, 1).double()
    for t, listed in enumerate(([5, 9], [0], [])):
        wanted = attention(q[t], flat, listed, 192**-0.5)
        assert torch.allclose(out[t].double(), wanted, rtol=1e-5, atol=1e-5), t


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ranks, interleave, page", [(2, 1, 16), (4, 8, 8)])
def test_ranks_of_context_parallelism_join_to_the_whole(vllm, monkeypatch, device, ranks, interleave, page):
    """vLLM lists the rows of one rank. Its merge wants the natural lse; an empty list gives -inf and 0."""
    parallel = vllm.config.parallel_config
    parallel.cp_kv_cache_interleave_size, parallel.decode_context_parallel_size = interleave, ranks
    rng, heads = torch.Generator().manual_seed(ranks), 5 * ranks
    common, tokens, table, lens = batch_of(rng, page, device)
    topk = positions_of(rng, tokens, 13, 64)
    topk[2] = torch.where(topk[2] >= 0, 0, -1)  # all rows of one rank
    rows, q = normal(rng, len(lens), 60, 576), normal(rng, common.num_actual_tokens, heads, 576)
    outs, lses = [], []
    for rank in range(ranks):
        monkeypatch.setattr("vllm_world.RANKS", [ranks, rank])
        ours = impl(vllm, heads=5, topk=topk.to(device))
        cache = torch.full((int(table.max()) + 2, page, 576), math.nan)
        for r, length in enumerate(lens.tolist()):
            mine = [p for p in range(length) if p // interleave % ranks == rank]
            for at, position in enumerate(mine):
                cache[int(table[r, at // page]), at % page] = rows[r, position]
        metadata = builder(vllm, page, device).build(0, common)
        layer = SimpleNamespace(_k_scale=torch.ones(1))
        out, lse = ours.forward_mqa(q.to(device)[: len(tokens)], cache.to(device), metadata, layer)
        assert lse.shape == out.shape[:2] and not out.isnan().any() and ours.lse_base_on_e is not False
        outs.append(out.double().cpu())
        lses.append(lse.double().cpu())
    assert (lses[1][2] == -math.inf).all() and (outs[1][2] == 0).all()
    weights = torch.stack(lses).softmax(0).nan_to_num(0)  # no rank has a row: -inf everywhere
    joined = (torch.stack(outs) * weights[..., None]).sum(0)
    for t, (r, _) in enumerate(tokens):
        listed = [p for p in topk[t].tolist() if p >= 0]
        wanted = attention(q[t], rows[r].double(), listed, 192**-0.5)
        assert torch.allclose(joined[t], wanted, rtol=1e-5, atol=1e-5), t


@pytest.mark.parametrize("device", DEVICES)
def test_hisparse_hands_over_its_hot_cache(vllm, monkeypatch, device):
    """Decodes attend to rows of the hot cache, prefill to a staged one, in two calls of one step."""
    step = Step(vllm, device, "bfloat16", torch.bfloat16, 16, seed=3, queries=(1, 1, 3, 0, 6))
    step.metadata.num_decode_tokens = 2
    flat = step.cache.flatten(0, 1)
    order = torch.randperm(len(flat), generator=torch.Generator().manual_seed(1))
    place = {int(row): at for at, row in enumerate(order)}
    hot = flat[order.to(device)].view(step.cache.shape)
    step.impl.hot = HotCache(cache=hot, row_of=lambda r, p: place[step.row(r, p)])
    made = kernel_calls(step, monkeypatch)
    step.check(step.run()[0])
    assert [(call.is_decode, len(call.rows)) for call in made] == [(True, 2), (False, len(step.topk[:11]))]
    assert made[0].cache is hot


def test_layers_that_are_alike_share_a_prepared_call(vllm):
    attend_of_plugin._calls.clear()
    first = Step(vllm, "cpu", "bfloat16", torch.bfloat16, 16)
    out = first.run()[0]
    second = Step(vllm, "cpu", "bfloat16", torch.bfloat16, 16)
    assert torch.equal(second.run()[0], out) and len(attend_of_plugin._calls) == 1


def test_short_requests_attend_to_their_lists(with_parents):
    """The builder counts requests of up to 128 tokens as decodes, 256 with more than 32 heads."""
    parallel = with_parents.config.parallel_config
    for heads, wanted in ((5, 128), (32, 128), (33, 256), (128, 256)):
        parallel.heads = heads
        assert builder(with_parents, 16).reorder_batch_threshold == wanted


@pytest.mark.parametrize("pages, apart", [(1, 0), (3, 0), (4, 24), (2, 32), (3, 3)])
def test_every_row_of_pages_apart_has_its_number(pages, apart):
    whole = torch.arange(pages * (16 + apart) * 4).view(pages, 16 + apart, 4)
    flat = caches_of_plugin.flat_pages(whole[:, :16]).flatten(0, 1)
    assert len(flat) == (pages - 1) * (16 + apart) + 16  # and nothing behind them, which may be no memory
    assert torch.equal(flat, whole.flatten(0, 1)[: len(flat)])


def test_pages_that_are_no_whole_records_apart_are_refused(vllm):
    step = Step(vllm, "cpu", "bfloat16", torch.bfloat16, 16)
    pages = torch.zeros(3, 16 * 576 + 8, dtype=torch.bfloat16)[:, : 16 * 576].unflatten(1, (16, 576))
    rows = torch.zeros(1, 4, dtype=torch.int32)
    with pytest.raises(smla.InvalidArgument, match=r"kv_cache.stride\(0\): got 9224, wanted a multiple"):
        step.impl._forward_mqa_kernel(
            step.q[0][:1], pages, rows, None, layer=step.layer, block_size=16, is_decode=True
        )
