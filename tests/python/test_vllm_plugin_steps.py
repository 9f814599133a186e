"""Steps of V3.2 and V4 through the plug-in for vLLM, against attention in float64."""

import inspect
import math
import sys
import types
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import smla
from smla.vllm import attend as attend_of_plugin
from smla.vllm import caches as caches_of_plugin
from vllm_steps import E4M3, KINDS, Step, attention
from vllm_world import INTERFACE, batch_of, builder, impl, ints, normal, positions_of
from vllm_world import either as either
from vllm_world import legacy as legacy
from vllm_world import vllm as vllm

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind, dtype", KINDS, ids=lambda x: str(x).removeprefix("torch."))
@pytest.mark.parametrize("page, seed", [(64, 0), (16, 1), (7, 2)])
def test_a_step_of_v32(either, device, kind, dtype, page, seed):
    shape = either.backend.SmlaSparseBackend.get_kv_cache_shape(9, page, 1, 576, kind)
    step = Step(either, device, kind, dtype, page, seed=seed)
    assert shape[1:] == step.cache.shape[1:]
    out, lse = step.run()
    assert out.shape == (step.common.num_actual_tokens, 5, 512) and out.dtype == dtype and lse is None
    step.check(out)
    if either.facts["parents"] is None:
        assert (out[len(step.tokens) :] == 0).all()  # padding attends to nothing
    assert torch.equal(step.run(torch.cat(step.q, -1))[0], out)


def test_keys_of_656_bytes_are_rounded_as_the_engine_rounds_them(either):
    """Scales that are no powers of two tell bf16(code * scale) from an exact product."""
    rng = torch.Generator().manual_seed(4)
    common, tokens, table, _ = batch_of(rng, 16, "cpu")
    cache = torch.zeros(int(table.max()) + 2, 16, 656, dtype=torch.uint8)
    cache[..., :512] = normal(rng, *cache.shape[:2], 512).to(E4M3).view(torch.uint8)
    cache[..., 512:528] = (1 + torch.rand(*cache.shape[:2], 4, generator=rng)).view(torch.uint8)
    cache[..., 528:] = normal(rng, *cache.shape[:2], 64, dtype=torch.bfloat16).view(torch.uint8)
    topk, q = positions_of(rng, tokens, 13, 64), normal(rng, common.num_actual_tokens, 5, 576)
    ours, metadata = (
        impl(either, topk=topk, kv_cache_dtype="fp8_ds_mla"),
        builder(either, 16).build(0, common),
    )
    out, _ = ours.forward_mqa(q, cache, metadata, SimpleNamespace(_k_scale=torch.ones(1)))
    request = torch.tensor([r for r, _ in tokens], dtype=torch.int32)
    rows = smla.map(topk[: len(tokens)], request, table, page_tokens=16)
    by_precision = {
        precision: smla.attend(
            q[: len(tokens)],
            smla.Cache(cache, "fp8_656", 16, pages=cache.shape[0]),
            rows,
            softmax_scale=192**-0.5,
            precision=precision,
        ).out
        for precision in ("rounded", "exact")
    }
    assert torch.equal(out[: len(tokens)], by_precision["rounded"])
    assert not torch.equal(out[: len(tokens)], by_precision["exact"])


def test_layers_that_are_alike_share_prepared_calls(either):
    rng = torch.Generator().manual_seed(6)
    common, tokens, table, _ = batch_of(rng, 16, "cpu")
    metadata, topk = builder(either, 16).build(0, common), positions_of(rng, tokens, 13, 64)
    cache = normal(rng, int(table.max()) + 2, 16, 576)
    q, layer = normal(rng, common.num_actual_tokens, 5, 576), SimpleNamespace(_k_scale=torch.ones(1))
    outs, counts = [], []
    attend_of_plugin._calls.clear()
    for scale in (0.1, 0.1, 0.3):
        ours = impl(either, topk=topk, scale=scale)
        outs += [ours.forward_mqa(q, cache, metadata, layer)[0] for _ in range(2)]
        counts.append(len(attend_of_plugin._calls))
    assert counts == [2, 2, 3]  # of map and attend
    assert torch.equal(outs[0], outs[3]) and not torch.equal(outs[0], outs[4])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind, many", [("bfloat16", 1), ("fp8_ds_mla", 64)])
def test_calls_that_come_again_are_prepared_once(either, monkeypatch, device, kind, many):
    """Tensors move between the calls, the list's buffer and the cache too; bits are those of first calls.

    many: from how many tokens on the parts of queries are joined in units of 16 bytes.
    """
    monkeypatch.setattr(caches_of_plugin, "_MANY_TOKENS", many)
    rng = torch.Generator().manual_seed(8)
    common, tokens, table, _ = batch_of(rng, 16, device)
    metadata, count = builder(either, 16, device).build(0, common), common.num_actual_tokens
    record, store = (656, torch.uint8) if kind == "fp8_ds_mla" else (576, torch.bfloat16)
    kept = impl(either, kv_cache_dtype=kind)
    layer, slots = SimpleNamespace(_k_scale=torch.ones(1, device=device)), common.slot_mapping[:count]
    caches = [torch.zeros(int(table.max()) + 2, 16, record, dtype=store, device=device) for _ in range(2)]

    def tensors():
        wide = normal(rng, count, 5, 640, dtype=torch.bfloat16).to(device)
        rope = normal(rng, count, 1, 96, dtype=torch.bfloat16).to(device)[..., :64]  # a part of wider rows
        head = normal(rng, count, 512, dtype=torch.bfloat16).to(device)
        return head, rope, (wide[..., :512], wide[..., 512:576]), positions_of(rng, tokens, 13, 64).to(device)

    def step(ours, cache, head, rope, q, topk):
        ours._indexer.topk_indices_buffer = topk
        ours.do_kv_cache_update(head, rope, cache, slots, kind, layer._k_scale)
        return ours.forward_mqa(q, cache, metadata, layer)[0]

    writes, calls = caches_of_plugin._writes, attend_of_plugin._calls
    writes.clear()
    calls.clear()
    for i in range(6):  # alternates between two caches
        given, cache = tensors(), caches[i % 2]
        other = cache.clone()
        out = step(kept, cache, *given)
        assert torch.equal(out, step(impl(either, kv_cache_dtype=kind), other, *given))
        assert torch.equal(cache, other) and not torch.equal(out, torch.zeros_like(out))
    assert len(calls) == 2 and len(writes) == 1
    head, rope, q, topk = tensors()
    halved = head.repeat_interleave(2, 1)[:, ::2]  # other strides
    step(kept, caches[0], halved, rope, q, topk)
    assert len(calls) == 2 and len(writes) == 2


@pytest.mark.parametrize("device", DEVICES)
def test_metadata_of_a_step(legacy, device):
    rng = torch.Generator().manual_seed(3)
    making = builder(legacy, 16, device)
    addresses = set()
    for queries, padding in (((1, 1, 3, 0, 6), 2), ((1,), 0), ((2, 2, 2), 3), ((0, 9), 0)):
        common, tokens, table, lens = batch_of(rng, 16, device, queries, padding)
        got = making.build(common_prefix_len=0, common_attn_metadata=common, fast_build=True)
        count = len(tokens) + padding
        assert got.req_id_per_token.tolist() == [r for r, _ in tokens] + [len(queries)] * padding
        assert got.slot_mapping.tolist() == common.slot_mapping[:count].tolist()
        assert got.seq_lens.tolist() == lens.tolist() and torch.equal(got.block_table.cpu(), table)
        assert got.query_start_loc.tolist() == common.query_start_loc.tolist()
        assert (got.num_reqs, got.num_actual_tokens, got.num_decodes) == (len(queries), count, len(queries))
        assert (got.num_prefills, got.num_decode_tokens) == (0, count)
        assert (got.block_size, got.topk_tokens) == (16, 11)
        assert (got.max_query_len, got.max_seq_len) == (max(queries), int(lens.max()))
        addresses.add(got.req_id_per_token.data_ptr())
    assert len(addresses) == 1  # captured graphs read this buffer


def test_parts_of_queries_are_joined_bit_by_bit():
    rng = torch.Generator().manual_seed(5)
    for tokens in (3, 80):
        for first in (128, 129, 130):  # of the rope part in wider rows: 16, 2 and 4 bytes divide it
            nope = normal(rng, tokens, 5, 512, dtype=torch.bfloat16)
            rope = normal(rng, tokens, 5, 200, dtype=torch.bfloat16)[..., first : first + 64]
            got = caches_of_plugin.joined((nope, rope))
            assert got.dtype is torch.bfloat16 and torch.equal(got, torch.cat((nope, rope), -1))
        assert caches_of_plugin.joined((nope, rope[..., :0])) is nope
        assert caches_of_plugin.joined(nope) is nope


def test_a_profiling_run_writes_nothing(either):
    ours, keys = impl(either), torch.ones(2, 512, dtype=torch.bfloat16)
    rope, cache = torch.ones(2, 1, 64, dtype=torch.bfloat16), torch.zeros(2, 4, 576, dtype=torch.bfloat16)
    ours.do_kv_cache_update(keys, rope, cache, None, "auto", torch.ones(1))
    ours.do_kv_cache_update(
        keys, rope, torch.tensor([]), torch.zeros(2, dtype=torch.int64), "auto", torch.ones(1)
    )
    assert (cache == 0).all()


def test_a_cache_that_moved_and_a_scale_that_changed_are_seen(either):
    ours, scale = impl(either, kv_cache_dtype="fp8_e4m3"), torch.ones(1)
    keys, rope = torch.full((1, 512), 4.0), torch.full((1, 1, 64), 4.0)
    first, second = (torch.zeros(2, 4, 576, dtype=torch.uint8) for _ in range(2))
    for cache, value in ((first, 1.0), (second, 1.0), (first, 2.0), (first[:, 1:], 2.0)):
        scale.fill_(value)  # in place, as vLLM does
        ours.do_kv_cache_update(keys, rope, cache, torch.zeros(1, dtype=torch.int64), "fp8_e4m3", scale)
        assert (cache[0, 0].view(E4M3).float() == 4 / value).all()
    assert (first[0, 1].view(E4M3).float() == 2).all() and (first[0, 0].view(E4M3).float() == 2).all()


REFUSALS = [
    ({"alibi_slopes": [1.0]}, "alibi_slopes"),
    ({"sliding_window": 4}, "sliding_window"),
    ({"logits_soft_cap": 1.0}, "logits_soft_cap"),
    ({"attn_type": "encoder"}, "attn_type"),
    ({"indexer": None}, "indexer"),
    ({"sinks": torch.zeros(5)}, "sinks"),
    ({"something_new": True}, "something_new"),
]


@pytest.mark.parametrize("changes, field", REFUSALS)
def test_what_published_backends_refuse_is_refused(either, changes, field):
    with pytest.raises(NotImplementedError) as caught:
        impl(either, **changes)
    assert caught.value.field == field


def test_dense_attention_is_refused(legacy):
    with pytest.raises(smla.Unsupported, match="forward_mha"):
        impl(legacy).forward_mha(1, 2, output=3)
    assert impl(legacy).supports_dense_mha_prefill is False and impl(legacy).supports_pcp is False


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ranks, interleave, page", [(2, 1, 16), (3, 4, 16), (4, 8, 8)])
def test_ranks_of_context_parallelism_join_to_the_whole(either, monkeypatch, device, ranks, interleave, page):
    """Each rank writes its share of the keys and attends to it; merged by lse this is the whole attention."""
    parallel = either.config.parallel_config
    parallel.cp_kv_cache_interleave_size, parallel.decode_context_parallel_size = interleave, ranks
    rng, heads = torch.Generator().manual_seed(ranks), 5 * ranks  # of all ranks: vLLM gathers the queries
    common, tokens, table, lens = batch_of(rng, page, device)
    if device == "cuda":  # vLLM's tables name the pages of this rank alone
        columns = -(-60 // (ranks * interleave)) * interleave
        common.block_table_tensor = common.block_table_tensor[:, : -(-columns // page)]
    count, topk = common.num_actual_tokens, positions_of(rng, tokens, 13, 64)
    rows = normal(rng, len(lens), 60, 576)
    q = normal(rng, count, heads, 576)
    outs, lses = [], []
    for rank in range(ranks):
        monkeypatch.setattr("vllm_world.RANKS", [ranks, rank])
        ours = impl(either, heads=5, topk=topk.to(device))
        cache = torch.full((int(table.max()) + 2, page, 576), math.nan)
        for r, length in enumerate(lens.tolist()):
            mine = [p for p in range(length) if p // interleave % ranks == rank]
            for at, position in enumerate(mine):
                cache[int(table[r, at // page]), at % page] = rows[r, position]
        metadata, layer = (
            builder(either, page, device).build(0, common),
            SimpleNamespace(_k_scale=torch.ones(1)),
        )
        out, lse = ours.forward_mqa(q.to(device), cache.to(device), metadata, layer)
        assert lse.shape == (count, heads) and not out.isnan().any()
        outs.append(out.double().cpu())
        lses.append(lse.double().cpu())
    weights = torch.stack(lses).softmax(0).nan_to_num(0)  # no rank has a row: -inf everywhere
    joined = (torch.stack(outs) * weights[..., None]).sum(0)
    for t, (r, _) in enumerate(tokens):
        listed = [p for p in topk[t].tolist() if p >= 0]
        wanted = attention(q[t], rows[r].double(), listed, 192**-0.5)
        assert torch.allclose(joined[t], wanted, rtol=1e-5, atol=1e-5), t
    if either.facts["parents"] is None:
        assert (joined[len(tokens) :] == 0).all()


def test_the_selection_is_looked_up_in_every_call(either):
    indexer = SimpleNamespace(topk_indices_buffer=torch.zeros(4, 13, dtype=torch.int32))
    ours = impl(either, indexer=indexer)
    indexer.topk_indices_buffer = torch.ones(4, 13, dtype=torch.int32)  # as for a draft model
    assert ours.topk_indices_buffer is indexer.topk_indices_buffer


@pytest.mark.parametrize("name", ["topk_indices_buffer", "topk_indice_buffer"])
def test_layers_without_an_indexer_take_the_shared_buffer(legacy, name):
    buffer = torch.zeros(4, 13, dtype=torch.int32)
    assert impl(legacy, indexer=None, **{name: buffer}).topk_indices_buffer is buffer


def v4_cache(rng, pages, page, kind, device):
    """A cache of random records, and its rows in float64."""
    if kind == "bf16":
        cache = normal(rng, pages, page, 512, dtype=torch.bfloat16)
        return cache.to(device), cache.flatten(0, 1).double()
    if kind == "e4m3":
        cache = normal(rng, pages, page, 512).mul(20).to(E4M3)
        return cache.to(device), cache.flatten(0, 1).double() * 0.05
    stride = -(-584 * page // 576) * 576
    memory = torch.full((pages * stride,), 0x7F, dtype=torch.uint8)
    whole = memory.as_strided((pages, stride), (stride, 1))
    codes = normal(rng, pages, page, 448).mul(20).to(E4M3)
    rope = normal(rng, pages, page, 64, dtype=torch.bfloat16)
    exponents = ints(rng, 120, 125, pages, page, 7)
    rows = torch.cat([codes.view(torch.uint8), rope.view(torch.uint8)], -1).flatten(1)
    scales = torch.cat(
        [exponents.to(torch.uint8), torch.zeros(pages, page, 1, dtype=torch.uint8)], -1
    ).flatten(1)
    whole[:, : 584 * page] = torch.cat([rows, scales], -1)
    scale = torch.exp2(exponents.double() - 127).repeat_interleave(64, -1)
    values = torch.cat([codes.double() * scale, rope.double()], -1).flatten(0, 1)
    memory = memory.to(device)
    return memory.as_strided((pages, page, 584), (stride, 584, 1)), values


def rows_through(table, request, positions, page):
    return [int(table[request, p // page]) * page + p % page if p >= 0 else -1 for p in positions]


def filled(lists, width):
    out = torch.tensor([some + [-1] * (width - len(some)) for some in lists], dtype=torch.int32)
    return out.view(len(lists), width)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["fp8_ds_mla", "bf16", "e4m3"])
@pytest.mark.parametrize("ratio, made", [(1, True), (4, True), (4, False), (128, True)])
def test_a_step_of_v4(vllm, device, kind, ratio, made):
    rng, heads, window, swa_page = torch.Generator().manual_seed(ratio), 3, 9, 16
    entry_page, longest, decodes = 256 // max(ratio, 4), 300, 2
    queries = (1, 1, 3, 0, 6)
    common, tokens, table, lens = batch_of(rng, swa_page, "cpu", queries, padding=1, longest=longest)
    real, count = len(tokens), common.num_actual_tokens
    entry_table = torch.randperm(40, generator=rng)[: 5 * 3].view(5, 3).int()
    swa, window_keys = v4_cache(rng, int(table.max()) + 1, swa_page, kind, device)
    compressed, entry_keys = v4_cache(rng, 40, entry_page, kind, device)
    recent = [rows_through(table, r, range(max(p - window + 1, 0), p + 1), swa_page) for r, p in tokens]
    visible = [(p + 1) // ratio for _, p in tokens]
    chosen = positions_of(
        rng, [(r, max(n - 1, 0)) for (r, _), n in zip(tokens, visible, strict=True)], 11, 64
    )
    if ratio == 4:
        for t, n in enumerate(visible):
            chosen[t] = chosen[t] if n else -1
    entries = [list(range(n)) if ratio == 128 else chosen[t].tolist() for t, n in enumerate(visible)]
    mapped = [rows_through(entry_table, r, e, entry_page) for (r, _), e in zip(tokens, entries, strict=True)]

    place = lambda tensor: tensor.to(device)  # noqa: E731
    lengths = torch.tensor([len(some) for some in recent] + [0], dtype=torch.int32)
    lists = filled(recent + [[]], window)
    poison = torch.full_like(lists[real:], 10**6)  # rows of padding are stale
    lists = torch.cat([lists[:real], poison])
    swa_metadata = SimpleNamespace(
        num_decode_tokens=decodes,
        num_prefill_tokens=count - decodes,
        decode_swa_indices=place(lists[:decodes, None]),
        decode_swa_lens=place(lengths),
        prefill_swa_indices=place(lists[decodes:, None]) if made else None,
        prefill_swa_lens=place(lengths[decodes:]) if made else None,
        token_to_req_indices=place(torch.tensor([r for r, _ in tokens] + [0] * 9, dtype=torch.int32)),
        is_valid_token=place(torch.tensor([True] * real + [False] * 9)),
        seq_lens=place(lens),
        query_start_loc=place(common.query_start_loc),
        block_table=place(table),
        block_size=swa_page,
    )
    width = 4
    all_lens = torch.tensor([len(e) for e in entries] + [0], dtype=torch.int32)
    main = SimpleNamespace(
        block_table=place(entry_table),
        block_size=256 if ratio > 1 else 64,
        c128a_global_decode_topk_indices=place(filled(mapped[:decodes], width)[:, None])
        if ratio == 128
        else None,
        c128a_decode_topk_lens=place(all_lens) if ratio == 128 else None,
        c128a_prefill_topk_indices=place(filled(entries[decodes:] + [[]], width)) if ratio == 128 else None,
    )
    layer = SimpleNamespace(
        prefix="main",
        swa_cache_layer=SimpleNamespace(prefix="swa", kv_cache=swa),
        kv_cache=compressed if ratio > 1 else torch.tensor([]),
        compress_ratio=ratio,
        window_size=window,
        topk_indices_buffer=place(chosen),
        attn_sink=place(torch.cat([normal(rng, heads), torch.full((4,), -math.inf)])),
        scale=512**-0.5,
        _flashinfer_fp8_q_scale=torch.tensor([0.1], device=device),
        _flashinfer_fp8_kv_scale=torch.tensor([0.05], device=device),
    )
    q = normal(rng, count + 2, heads, 512, dtype=torch.bfloat16)
    if kind == "e4m3":
        q = q.float().mul(10).to(E4M3)
    output = torch.full((count + 2, heads + 2, 512), 7.0, dtype=torch.bfloat16, device=device)
    vllm.config.context.attn_metadata = {"main": main, "swa": swa_metadata}
    vllm.hybrid.forward_mqa(layer, place(q), None, None, output)

    values = q.double() * (0.1 if kind == "e4m3" else 1)
    sink = layer.attn_sink[:heads].cpu()
    keys = torch.cat([window_keys, entry_keys])
    for t in range(real):
        listed = recent[t] + [len(window_keys) + row for row in (mapped[t] if ratio > 1 else []) if row >= 0]
        wanted = attention(values[t], keys, listed, layer.scale, sink)
        assert torch.allclose(output[t, :heads].cpu().double(), wanted, rtol=2**-6, atol=2**-6), t
    assert (output[real:count, :heads] == 0).all()  # padding
    assert (output[count:, :heads] == 7).all()  # behind the step
    assert (output[:, heads:] == 0).all()  # heads that q has not


def test_a_warm_up_of_v4_zeroes_the_output(vllm):
    output = torch.ones(2, 3, 512)
    vllm.config.context.attn_metadata = None
    vllm.hybrid.forward_mqa(None, None, None, None, output)
    assert (output == 0).all()
    names = list(inspect.signature(vllm.hybrid.forward_mqa).parameters)
    assert names == INTERFACE["v4"]["forward_mqa"]


def test_v4_gets_smla_in_the_classes_that_are_there(vllm, monkeypatch):
    with pytest.raises(smla.Unsupported, match="DeepseekV4FlashMLAAttention"):
        vllm.hybrid.install()
    module = types.ModuleType("vllm.models.deepseek_v4.nvidia.flashmla")
    theirs = module.DeepseekV4FlashMLAAttention = type("DeepseekV4FlashMLAAttention", (), {})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for _ in range(2):
        assert vllm.hybrid.install() == ["DeepseekV4FlashMLAAttention"]
    output = torch.ones(2, 3, 512)
    theirs().forward_mqa(None, None, None, output)  # bound: self is the layer
    assert (output == 0).all()
    with pytest.raises(smla.Unsupported, match="output: got tuple"):
        theirs().forward_mqa(None, None, None, (output, output))
