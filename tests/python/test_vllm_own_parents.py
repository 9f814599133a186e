"""Steps on the classes of an installed vLLM, 0.30 or later: on a CPU, where only its Triton kernels that find
rows are replaced, and on a GPU as they are. scripts/vllm_check runs this file in vLLM's environment.
"""

import math
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
parents = pytest.importorskip(
    "vllm.model_executor.layers.attention.sparse_mla_attention", exc_type=ImportError
)
if not hasattr(parents, "SparseMLACommonMetadata"):
    pytest.skip("this vLLM has no base class that smla uses", allow_module_level=True)

import vllm.config
from smla.vllm import backend
from vllm.v1.attention.backends.mla import index_group
from vllm_parents import rows_of
from vllm_steps import Step, attention
from vllm_world import normal

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
OURS = backend._impl


def converted(request, table, positions, *, cache_rows, ranks=1, rank=0, interleave=1, page=64):
    """What vLLM's kernels find, by loops."""
    metadata = SimpleNamespace(req_id_per_token=request, cp_kv_cache_interleave_size=interleave)
    impl = SimpleNamespace(dcp_world_size=ranks, dcp_rank=rank)

    def row_of(r, position):
        at = position // (interleave * ranks) * interleave + position % interleave
        return int(table[r, at // page]) * cache_rows + at % page

    return rows_of(impl, positions, metadata, row_of)


def convert(request, table, positions, BLOCK_SIZE=64, BLOCK_STRIDE_ROWS=None, out=None, **named):
    ranks = {new: named[old] for new, old in (("ranks", "dcp_size"), ("rank", "dcp_rank")) if old in named}
    if ranks:
        ranks["interleave"] = named["cp_kv_cache_interleave_size"]
    rows, counts = converted(
        request, table, positions, cache_rows=BLOCK_STRIDE_ROWS or BLOCK_SIZE, page=BLOCK_SIZE, **ranks
    )
    assert named["return_valid_counts"] and named["NUM_TOPK_TOKENS"] == positions.shape[1]
    if out is not None:
        out.copy_(rows)
        named["valid_counts_out"].copy_(counts)
    return rows, counts


class Stream:
    """A stream of a CPU, which runs in order."""

    def __getattr__(self, name):
        return lambda *_: None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


@pytest.fixture
def world(monkeypatch):
    """What smla_vllm's builders of steps need, over the installed vLLM."""
    parallel = SimpleNamespace(decode_context_parallel_size=1, cp_kv_cache_interleave_size=1)
    config = SimpleNamespace(parallel_config=parallel)
    config.attention_config = SimpleNamespace(hisparse_config=None)
    for module in (parents, vllm.config):
        for name in ("get_current_vllm_config", "get_current_vllm_config_or_none"):
            monkeypatch.setattr(module, name, lambda: config, raising=False)
    monkeypatch.setattr(parents, "get_tensor_model_parallel_world_size", lambda: 1)
    built = lambda *_, **__: SimpleNamespace(build=metadata_of)  # noqa: E731
    ours = SimpleNamespace(SmlaSparseImpl=OURS.SmlaSparseImpl, SmlaSparseMetadataBuilder=built)
    names = {"alibi_slopes", "sliding_window", "logits_soft_cap", "kv_sharing_target_layer_name"}
    facts = {"impl": {"constructed_with": [*names, "q_lora_rank", "kv_b_proj"]}}
    return SimpleNamespace(impl=ours, config=config, facts=facts)


def metadata_of(_, common):
    counts = common.query_start_loc.diff().tolist()
    requests = [r for r, n in enumerate(counts) for _ in range(n)]
    requests += [0] * (common.num_actual_tokens - len(requests))
    return SimpleNamespace(
        req_id_per_token=torch.tensor(requests, device=common.query_start_loc.device).int(),
        block_table=common.block_table_tensor,
        block_size=16,
        num_decodes=2,
        num_decode_tokens=2,
        cp_kv_cache_interleave_size=1,
    )


@pytest.fixture
def on_cpu(monkeypatch):
    """vLLM's code finds the rows on a CPU too."""
    for module in (parents, index_group):
        monkeypatch.setattr(module, "triton_convert_req_index_to_global_index", convert, raising=False)
    monkeypatch.setattr(parents, "triton_filter_and_convert_dcp_index", convert, raising=False)
    monkeypatch.setattr(index_group, "_create_side_stream", lambda device: Stream())
    monkeypatch.setattr(index_group, "_create_event", Stream)
    monkeypatch.setattr(index_group, "current_stream", Stream)
    monkeypatch.setattr(OURS, "_finds_rows", lambda cache: OURS.FINDS_ROWS)


@pytest.fixture(params=DEVICES)
def device(request):
    if request.param == "cpu":
        request.getfixturevalue("on_cpu")
    return request.param


@pytest.mark.parametrize("shape", [{}, {"rope": 0, "width": 128}], ids=["V3.2", "GLM-5.3-Flash"])
@pytest.mark.parametrize("kind", ["bfloat16", "fp8_ds_mla"])
@pytest.mark.parametrize("decodes, apart", [(2, 0), (2, 24), (13, 0)])
def test_a_step(world, device, kind, shape, decodes, apart):
    step = Step(world, device, kind, torch.bfloat16, 16, apart=apart, **shape)
    step.metadata.num_decode_tokens = decodes
    out, lse = step.run()
    assert lse is None
    step.check(out)
    assert (out[1] == 0).all()  # its list is empty


def test_layers_share_the_rows_of_a_selection(world, device):
    """The second layer of a group gets what the first one found."""
    step = Step(world, device, "bfloat16", torch.bfloat16, 16)
    if not hasattr(step.impl, "index_group") or not OURS.FINDS_ROWS:
        pytest.skip("smla finds the rows in this version")
    step.metadata.num_decode_tokens = len(step.q[0])
    step.impl.index_group.num_layers = 2
    step.impl.record_logical_topk_ready()
    step.check(step.run()[0])
    step.topk.fill_(-1)
    step.impl.index_group_index = 1
    assert (step.run()[0][0] != 0).any()


@pytest.mark.parametrize("ranks, interleave", [(2, 1), (4, 8)])
def test_ranks_of_context_parallelism_join_to_the_whole(world, device, ranks, interleave):
    step = Step(world, device, "bfloat16", torch.bfloat16, 16)
    step.metadata.cp_kv_cache_interleave_size, step.impl.need_to_return_lse_for_decode = interleave, True
    rng, count = torch.Generator().manual_seed(ranks), len(step.tokens)
    keys, outs, lses = normal(rng, len(step.table), 64, 576, dtype=torch.bfloat16), [], []
    for rank in range(ranks):
        step.impl.dcp_world_size, step.impl.dcp_rank = ranks, rank
        step.cache.fill_(math.nan)
        for r in range(len(step.table)):
            for at, p in enumerate([p for p in range(60) if p // interleave % ranks == rank]):
                step.cache[int(step.table[r, at // 16]), at % 16] = keys[r, p]
        out, lse = step.run(tuple(x[:count] for x in step.q))
        outs.append(out.double().cpu())
        lses.append(lse.double().cpu())
    weights = torch.stack(lses).softmax(0).nan_to_num(0)
    joined, flat = (torch.stack(outs) * weights[..., None]).sum(0), torch.cat(step.q, -1).cpu()
    for t, (r, _) in enumerate(step.tokens):
        listed = [p for p in step.topk[t].tolist() if p >= 0]
        wanted = attention(flat[t], keys[r].double(), listed, 192**-0.5)
        assert torch.allclose(joined[t], wanted, rtol=2**-6, atol=2**-6), t


def test_hisparse(world, device, monkeypatch):
    """vLLM's own branch: decodes on the hot cache, prefill on staged rows."""
    if not OURS.FINDS_ROWS:
        pytest.skip("this version leaves HiSparse to backends")
    step = Step(world, device, "bfloat16", torch.bfloat16, 16, seed=3)
    flat = step.cache.flatten(0, 1)
    order = torch.randperm(len(flat), generator=torch.Generator().manual_seed(1))
    place = {int(row): at for at, row in enumerate(order)}
    hot = flat[order.to(device)].view(step.cache.shape)

    class Group(index_group.HiSparseMLAIndexGroup):
        def __init__(self):
            pass

        def physical_kv_cache(self, layer):
            return hot

        def cache(self, layer):
            return SimpleNamespace(all_context_pages_resident=False)

        def convert_logical_to_physical_topk(self, layer, topk, metadata, **named):
            one = SimpleNamespace(dcp_world_size=1, dcp_rank=0)
            return rows_of(one, topk, metadata, lambda r, p: place[step.row(r, p)])

        def stage_prefill_rows(self, layer, cache, metadata):
            return cache, metadata.block_table, metadata.req_id_per_token[metadata.num_decode_tokens :]

    step.impl.index_group = Group()
    step.check(step.run()[0])


def test_the_builder_is_vllms_with_a_threshold(world, monkeypatch):
    made = []
    monkeypatch.setattr(parents.SparseMLACommonMetadataBuilder, "__init__", lambda self, *given: None)
    ours = OURS.SmlaSparseMetadataBuilder
    monkeypatch.setattr(
        ours, "_init_reorder_batch_threshold", lambda self, *given, **named: made.append((given, named))
    )
    model = SimpleNamespace(get_num_attention_heads=lambda parallel: 64)
    ours(None, ["layer"], SimpleNamespace(model_config=model, parallel_config=None), "cpu")
    assert made == [((256,), {"supports_spec_as_decode": True})]
    assert not ours.__abstractmethods__ and not OURS.SmlaSparseImpl.__abstractmethods__
