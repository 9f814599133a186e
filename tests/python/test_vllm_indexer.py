"""vLLM's indexer on smla: which names are replaced where, and scores and selection against float64."""

import functools
import inspect
import logging
import sys
import types

import pytest

torch = pytest.importorskip("torch")

import smla
from smla.vllm import fused, indexer_calls
from vllm_world import PLATFORM
from vllm_world import vllm as vllm

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
E4M3 = torch.float8_e4m3fn
PAGE, HEADS = 4, 3
SCHEMA = "(Tensor logits, Tensor lengths, Tensor(a!) output, Tensor workspace, int k, int max_seq_len) -> ()"
_operators = None


def module_name(file):
    return "vllm." + file.removesuffix(".py").replace("/", ".")


def theirs(*_arguments, **_named):
    raise AssertionError("vLLM's own")


def padded(x, lengths, pad_value=-float("inf"), block_t=64, block_d=64):
    """pack_seq_triton."""
    assert x.dtype is torch.uint8 and pad_value == 0
    return torch.nn.utils.rnn.pad_sequence(x.split(lengths.tolist()), batch_first=True)


class WarmKernel:
    """vLLM's kernel object of 0.30 and later."""

    def __init__(self):
        self.warm = []

    def __call__(self, *arguments, **named):
        return arguments, named

    def register_warmup(self, *, dtype, pad_value):
        self.warm.append((dtype, pad_value))


def define_operators():
    """vLLM's operators of selection, without kernels, once in a process."""
    global _operators
    if _operators is None:
        _operators = torch.library.Library("_C", "FRAGMENT")
        for name in ("persistent_topk", "cooperative_topk"):
            _operators.define(name + SCHEMA)


@pytest.fixture
def world(vllm, monkeypatch):
    """The modules of vLLM's indexer, with the names that this version has."""
    monkeypatch.delenv("SMLA_VLLM_INDEXER", raising=False)
    define_operators()
    facts, modules = vllm.facts["indexer"], {}
    for name, files in facts["names"].items():
        for file in files:
            module = modules.setdefault(module_name(file), types.ModuleType(module_name(file)))
            setattr(module, name, padded if name == "pack_seq_triton" else theirs)
    module = modules[vllm.indexer.INDEXER]
    module.ops = types.SimpleNamespace(indexer_k_quant_and_cache=theirs, something_else="kept")
    module.get_dcp_group = theirs
    module.has_cutedsl = lambda: PLATFORM.cutedsl
    module.mqa_logits_use_mx_scales = lambda: PLATFORM.capability == 100
    if not facts["mx_scales"]:
        del module.mqa_logits_use_mx_scales
    packing = modules[vllm.indexer.PACKING] = types.ModuleType(vllm.indexer.PACKING)
    if facts["pack_warmups"]:
        packing._PACK_SEQ_TRITON_KERNEL = WarmKernel()
    for name, each in modules.items():
        monkeypatch.setitem(sys.modules, name, each)
    vllm.modules, vllm.step = modules, module
    return vllm


def is_ours(value):
    return getattr(value, "__module__", "").startswith("smla.")


def replaced(world, ours):
    """Names of which modules of the stand-in are smla's, or vLLM's own."""
    names = [(m, n) for n, files in world.facts["indexer"]["names"].items() for m in map(module_name, files)]
    return {n for m, n in names if is_ours(getattr(world.modules[m], n)) is ours}


SCORES = {"has_deep_gemm", "fp8_fp4_mqa_logits", "fp8_fp4_paged_mqa_logits", "pack_seq_triton"}
MERGE = "_merge_dcp_topk_global"
KERNELS = {"fused_indexer_q_rope_quant", "fused_norm_rope", "fused_q"}


@pytest.mark.parametrize(
    ("gpu", "variable", "scores", "kernels"),
    [
        ((8, 0), None, True, True),
        ((8, 6), None, True, True),
        ((8, 9), None, True, False),
        ((9, 0), None, False, False),
        ((9, 0, False), None, True, False),  # no package deep_gemm
        ((11, 0), None, True, False),
        ((9, 0), "1", True, True),
        ((9, 0), "", False, False),
        ((8, 0), "0", False, False),
        ((0, 0), "1", False, False),  # no GPU
    ],
)
def test_what_is_replaced_follows_the_gpu(world, monkeypatch, gpu, variable, scores, kernels):
    PLATFORM.be(*gpu)
    if variable is not None:
        monkeypatch.setenv("SMLA_VLLM_INDEXER", variable)
    for _ in range(2):  # vLLM loads plug-ins more than once
        world.indexer.install()
        world.indexer.install_model()
    known = set(world.facts["indexer"]["names"])
    expected = (SCORES | {MERGE, "get_indexer_topk"} if scores else set()) | (KERNELS if kernels else set())
    assert replaced(world, True) == expected & known and SCORES | KERNELS | {MERGE} <= known
    assert replaced(world, False) == known - expected
    assert is_ours(type(world.step.ops)) is scores
    assert not is_ours(type(getattr(world.step.ops, "_theirs", None)))  # wrapped once
    assert world.step.ops.something_else == "kept"


def test_ranks_merge_on_smla_without_cutedsl(world):
    PLATFORM.be(9, 0)
    PLATFORM.cutedsl = False
    assert world.indexer.install() == [MERGE] and replaced(world, True) == {MERGE}


def test_registration_brings_the_indexer(world):
    PLATFORM.be(8, 0)
    assert smla.vllm.register()
    assert is_ours(world.step.fp8_fp4_mqa_logits)


def test_a_vllm_without_the_indexer_keeps_the_backend(world, monkeypatch, caplog):
    PLATFORM.be(8, 0)
    monkeypatch.setitem(sys.modules, world.indexer.INDEXER, None)
    with caplog.at_level(logging.WARNING):
        assert smla.vllm.register()
    assert "indexer is not replaced" in caplog.text
    assert smla.vllm.BACKEND in world.registry.paths.values()


def test_who_asks_for_deep_gemm(world):
    """The indexer is told that it is there, as it refuses to start else; the metadata that it is not."""
    PLATFORM.be(8, 0)
    world.indexer.install()
    assert world.step.has_deep_gemm() is True
    assert world.modules[world.indexer.METADATA].has_deep_gemm() is False


def test_other_values_of_the_variable_are_refused(world, monkeypatch):
    PLATFORM.be(9, 0)
    monkeypatch.setenv("SMLA_VLLM_INDEXER", "yes")
    with pytest.raises(smla.InvalidArgument, match="SMLA_VLLM_INDEXER.*'yes'.*0, 1, or unset"):
        world.indexer.install()


def test_an_index_cache_of_other_scales_is_refused(world, monkeypatch):
    PLATFORM.be(10, 0)
    monkeypatch.setenv("SMLA_VLLM_INDEXER", "1")
    if not world.facts["indexer"]["mx_scales"]:
        assert world.indexer.install()
        return
    with pytest.raises(smla.Unsupported, match="SMLA_VLLM_INDEXER.*sm_100"):
        world.indexer.install()


def test_the_replacements_take_the_calls_that_vllm_makes(vllm):
    places = {**vars(indexer_calls), **vars(fused)}
    places["pack_seq_triton"] = indexer_calls.pack_seq(theirs)
    places[MERGE] = indexer_calls.merge_dcp_topk(theirs)
    places["selection"] = indexer_calls.get_indexer_topk("auto")
    facts, seen = vllm.facts["indexer"], set()
    for name, *arguments in facts["calls"] + facts["selection"]:
        if name == "has_deep_gemm":
            continue
        positional = [argument for argument in arguments if not argument.endswith("=")]
        inspect.signature(places[name]).bind(*positional, **{a[:-1]: 0 for a in arguments if a.endswith("=")})
        seen.add(name)
    assert seen >= {*SCORES, *KERNELS, MERGE} - {"has_deep_gemm"}
    assert bool(facts["selection"]) == ("get_indexer_topk" in facts["names"])


@pytest.mark.parametrize("name", ["fp8_fp4_mqa_logits", "fp8_fp4_paged_mqa_logits", *sorted(KERNELS)])
def test_parameters_stand_where_vllm_has_them(vllm, name):
    """By position up to the first that only some versions have; names are the same."""
    ours = list(inspect.signature(getattr(indexer_calls, name, getattr(fused, name, None))).parameters)
    wanted = [text.partition("=")[0] for text in vllm.facts["indexer"]["parameters"][name]]
    assert set(wanted) <= set(ours)
    positional = max(
        sum(not a.endswith("=") for a in call) for call in vllm.facts["indexer"]["calls"] if call[0] == name
    )
    assert ours[: positional - 1] == wanted[: positional - 1]


def test_no_operation_of_the_step_is_left_to_vllm(vllm):
    """Every operation that a step on a GPU calls is smla's."""
    for name in vllm.facts["indexer"]["operators"]:
        space, _, last = name.rpartition(".")
        if space == "ops":
            assert last in vars(indexer_calls.Operations)
        elif space == "torch.ops._C":
            assert last in vllm.indexer.TOPK_OPERATORS
        else:
            assert last.startswith("xpu_")  # another platform's


@pytest.mark.parametrize("capability", [(8, 6), (8, 9)])
def test_e4m3_is_not_warmed_up_where_triton_has_none(world, capability):
    PLATFORM.be(*capability)
    for _ in range(2):
        world.indexer.install()
    packing = world.modules[world.indexer.PACKING]
    if not world.facts["indexer"]["pack_warmups"]:
        assert not hasattr(packing, "_PACK_SEQ_TRITON_KERNEL")
        return
    kernel = packing._PACK_SEQ_TRITON_KERNEL
    assert not is_ours(type(getattr(kernel, "_theirs", None)))  # wrapped once
    for name, *keywords in world.facts["indexer"]["pack_warmups"]:
        given = {"dtype=": E4M3, "pad_value=": -float("inf")}
        getattr(kernel, name)(**{key.removesuffix("="): given[key] for key in keywords})
    kernel.register_warmup(dtype=torch.float32, pad_value=1.0)
    wanted = (torch.uint8, 0) if capability == (8, 6) else (E4M3, -float("inf"))
    assert kernel.warm == [wanted, (torch.float32, 1.0)]
    assert kernel(1, two=2) == ((1,), {"two": 2})


def keys_of(rng, count):
    """Index keys as written, and their values in float64."""
    keys = torch.randn(count, 128, generator=rng)
    scale = torch.exp2(torch.ceil(torch.log2(keys.abs().amax(1, keepdim=True).clamp(min=1e-4) / 448)))
    return keys, (keys / scale).to(E4M3).double() * scale.double()


def logits_of(q, weights, values):
    products = torch.einsum("thd,nd->thn", q.double().flatten(0, -3), values).relu()
    return torch.einsum("thn,th->tn", products, weights.double())


def best(scores, start, end, k):
    """Columns of the k largest of scores[start:end], counted from start, ascending, then -1."""
    order = scores[start:end].argsort(descending=True, stable=True)[:k].sort().values.tolist()
    return order + [-1] * (k - len(order))


def assert_alike(got, wanted, step):
    """Logits of a row; Hopper's e4m3 products are rounded, held to DeepGEMM's own measure."""
    got = got.double()
    table = step.table
    if not (table.is_cuda and torch.cuda.get_device_capability(table.device)[0] == 9):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-4)
    assert 2 * (got * wanted).sum() >= (1 - 5e-6) * (got.square() + wanted.square()).sum()


@pytest.fixture(params=DEVICES)
def step(request, world, monkeypatch):
    """The step's module on smla, and a paged cache of two requests' keys: page table, values, index cache."""
    monkeypatch.setenv("SMLA_VLLM_INDEXER", "1")
    PLATFORM.be(9, 0)
    PLATFORM.dispatch_key = request.param.upper()
    world.indexer.install()
    rng = torch.Generator().manual_seed(3)
    lens = [9, 6]
    table = torch.tensor([[4, 1, 6], [0, 5, 2]], dtype=torch.int32)
    keys, values = keys_of(rng, sum(lens))
    slots = [int(table[r, p // PAGE]) * PAGE + p % PAGE for r, n in enumerate(lens) for p in range(n)]
    cache = torch.full((7, PAGE, 132), 255, dtype=torch.uint8)  # not written: NaN
    place = lambda tensor: tensor.to(request.param)  # noqa: E731
    cache, table = place(cache), place(table)
    world.step.ops.indexer_k_quant_and_cache(place(keys), cache, place(torch.tensor(slots)), 128, "ue8m0")
    return types.SimpleNamespace(
        world=world,
        module=world.step,
        rng=rng,
        lens=lens,
        table=table,
        values=values.split(lens),
        cache=cache,
        place=place,
    )


def call_with(step, name, *arguments, **named):
    """Calls the module's name with those keywords of `named` that this version's call has."""
    form = next(call for call in step.world.facts["indexer"]["calls"] if call[0] == name)
    keywords = {key: value for key, value in named.items() if f"{key}=" in form}
    assert len(arguments) == sum(not part.endswith("=") for part in form[1:])
    return getattr(step.module, name)(*arguments, **keywords)


def select(step, logits, lens, next_n, out, k):
    """The selection of decode rows, as this version asks for it."""
    if step.world.facts["indexer"]["selection"]:
        step.module.get_indexer_topk("auto")(logits, lens, next_n, out, k, 9)
    else:
        torch.ops._C.persistent_topk(logits, lens, out, out.new_empty(1, dtype=torch.uint8), k, 9)


def test_selection_reads_no_column_behind_the_longest_request():
    """NaN behind it would not be chosen either; what counts is that the kernel is that of short rows."""
    logits = torch.full((2, 40), float("nan"))
    logits[:, :9] = torch.arange(9.0)
    lens, out = torch.tensor([9, 4], dtype=torch.int32), torch.full((2, 3), -5, dtype=torch.int32)
    seen = []

    def watch(call, *arguments):
        seen.append(arguments[0].shape[1])
        return call(*arguments)

    inner = indexer_calls.vllm_ops.top_k_per_row_decode
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexer_calls.vllm_ops, "top_k_per_row_decode", functools.partial(watch, inner))
        for bound in (9, 40, 1000):
            indexer_calls.select_decode_rows(logits, lens, 1, out, 3, bound)
            assert out.tolist() == [[6, 7, 8], [1, 2, 3]]
    assert seen == [9, 40, 40]


@pytest.mark.parametrize("next_n", [1, 2])
@pytest.mark.parametrize("per_row", [True, False])
def test_decode_rows(step, next_n, per_row):
    q = torch.randn(2, next_n, HEADS, 128, generator=step.rng).to(E4M3)
    weights = torch.randn(2 * next_n, HEADS, generator=step.rng)
    ends = torch.tensor([[n - next_n + 1 + j for j in range(next_n)] for n in step.lens], dtype=torch.int32)
    lens = ends if per_row else ends[:, -1:]
    lens = step.place(lens)
    arguments = (step.place(q), None), step.cache.unsqueeze(-2), step.place(weights), lens, step.table, None
    named = {"max_model_len": 12, "clean_logits": False, "indices": None}
    logits = call_with(step, "fp8_fp4_paged_mqa_logits", *arguments, **named)
    out = step.place(torch.full((2 * next_n + 1, 7), -5, dtype=torch.int32))
    select(step, logits, lens, next_n, out[: 2 * next_n, :5], 5)
    logits, out = logits.cpu(), out.cpu()
    for row in range(2 * next_n):
        request, end = row // next_n, int(ends.flatten()[row])
        wanted = logits_of(
            q[request], weights[request * next_n : (request + 1) * next_n], step.values[request]
        )
        assert_alike(logits[row, :end], wanted[row % next_n, :end], step)
        assert out[row, :5].tolist() == best(logits[row], 0, end, 5)
    assert (out[:, 5:] == -5).all() and (out[-1] == -5).all()


def test_prefill_rows(step):
    """Gathered keys of both requests: a row sees those of its request up to its own."""
    total = sum(step.lens)
    codes = step.place(torch.empty(total + 3, 128, dtype=E4M3))
    scales = step.place(torch.empty(total + 3, 4, dtype=torch.uint8))
    cu = step.place(torch.tensor([0, step.lens[0], total], dtype=torch.int32))
    step.module.ops.cp_gather_indexer_k_quant_cache(step.cache, codes, scales, step.table, cu)
    rows = [(0, 7), (0, 8), (0, 9), (1, 1), (1, 6)]
    ks = cu[[r for r, _ in rows]]
    ke = ks + step.place(torch.tensor([n for _, n in rows], dtype=torch.int32))
    q = torch.randn(len(rows), HEADS, 128, generator=step.rng).to(E4M3)
    weights = torch.randn(len(rows), HEADS, generator=step.rng)
    kv = codes[:total], scales[:total].view(torch.float32).squeeze(-1)
    compressed = step.world.facts["indexer"]["parameters"]["fp8_fp4_mqa_logits"][-1] == "max_seqlen_k"
    last = (max(step.lens),) if compressed else ()
    arguments = (step.place(q), None), kv, step.place(weights), ks, ke, *last
    logits = call_with(step, "fp8_fp4_mqa_logits", *arguments, clean_logits=False)
    out = step.place(torch.full((len(rows), 9), -5, dtype=torch.int32))
    starts, ends = (torch.zeros_like(ks), ke - ks) if compressed else (ks, ke)
    step.module.ops.top_k_per_row_prefill(
        logits, starts, ends, out[:, :4], len(rows), logits.stride(0), logits.stride(1), 4
    )
    logits, out = logits.cpu(), out.cpu()
    for row, (request, seen) in enumerate(rows):
        wanted = logits_of(q[row : row + 1], weights[row : row + 1], step.values[request])[0]
        first = 0 if compressed else int(ks[row])
        got = logits[row, first : first + seen]
        assert_alike(got, wanted[:seen], step)
        assert out[row, :4].tolist() == best(got, 0, seen, 4)
    assert (out[:, 4:] == -5).all()


def test_rows_of_uneven_requests_are_packed_as_bytes(step):
    q = torch.randn(5, HEADS, 128, generator=step.rng).to(E4M3)
    packed = step.module.pack_seq_triton(step.place(q), torch.tensor([2, 3])).cpu()
    assert packed.dtype is E4M3 and packed.shape == (2, 3, HEADS, 128)
    assert packed[0, :2].float().equal(q[:2].float()) and packed[1].float().equal(q[2:].float())


class Ranks:
    """vLLM's group of ranks, each of which gave what gives[rank] says."""

    def __init__(self, gives):
        self.gives, self.sent = gives, None

    def all_gather(self, tensor, dim):
        self.sent = tensor
        return torch.cat([tensor if given is None else given for given in self.gives], dim)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize("ranks, interleave", [(2, 1), (3, 4)])
def test_ranks_select_what_one_selects(device, ranks, interleave, starts):
    """Rows of all lengths, with ties within and between ranks: the same list as over all keys."""
    rng, k = torch.Generator().manual_seed(ranks), 7
    lens = [0, 1, 2, 6, 7, 8, 20, 61, 64]
    scores = torch.randint(-3, 3, (len(lens), max(lens)), generator=rng).float()
    given = []
    for rank in range(ranks):
        first = [3 * t if starts else 0 for t in range(len(lens))]
        logits = torch.full(
            (len(lens), 3 * len(lens) + max(lens)), 9.0
        )  # best of all, where it must not look
        topk = torch.full((len(lens), k), -1, dtype=torch.int32)
        for t, length in enumerate(lens):
            mine = [p for p in range(length) if p // interleave % ranks == rank]
            logits[t, first[t] : first[t] + len(mine)] = scores[t, mine]
            topk[t] = torch.tensor(best(logits[t, first[t] :], 0, len(mine), k))
        named = {"row_starts": torch.tensor(first, dtype=torch.int32, device=device)} if starts else {}
        given.append((logits.to(device), topk.to(device), named))

    def merge(rank, group):
        logits, topk, named = given[rank]
        topk = topk.clone()
        indexer_calls.merge_dcp_topk(lambda: group)(logits, topk, k, rank, ranks, interleave, **named)
        return topk

    alone = [Ranks([None]) for _ in range(ranks)]
    for rank, group in enumerate(alone):
        merge(rank, group)
    wanted = [best(scores[t], 0, length, k) for t, length in enumerate(lens)]
    for rank in range(ranks):
        group = Ranks([None if r == rank else other.sent for r, other in enumerate(alone)])
        assert merge(rank, group).tolist() == wanted, rank


def test_one_rank_keeps_its_selection():
    topk = torch.tensor([[1, 5, -1]], dtype=torch.int32)
    indexer_calls.merge_dcp_topk(theirs)(torch.zeros(1, 9), topk, 3, 0, 1, 1)
    assert topk.tolist() == [[1, 5, -1]]
