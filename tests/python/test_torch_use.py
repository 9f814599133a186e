"""smla.torch in programs: compiled and exported models, layouts of caches, threads, CUDA graphs."""

import re
import threading

import pytest
from conftest import ROOT

torch = pytest.importorskip("torch")

import smla
from torch._dynamo.testing import CompileCounterWithBackend
from torch_cases import (
    CASES,
    PAGE,
    SLOTS,
    H,
    K,
    T,
    W,
    bound,
    compiled,
    integers,
    memory,
    normal,
    recorded,
    row_cache,
    rows,
    same,
)


class Model(torch.nn.Module):
    """Writes its input into a cache, and attends to it: with a smla.Cache, or with its memory as a buffer."""

    def __init__(self, as_buffer):
        super().__init__()
        self.cache = None if as_buffer else row_cache()
        self.register_buffer("data", row_cache().array.clone() if as_buffer else None)

    def forward(self, x, slots, listed):
        if self.cache is not None:
            smla.torch.write_kv(x.select(1, 0), slots, self.cache)  # PyTorch 2.6 cannot export x[:, 0]
            got = smla.torch.attend(x * 2, self.cache, listed, softmax_scale=0.2, lse=True)
            return got.out, got.lse + 1
        cache = {"cache_format": "row_f32", "cache_page_tokens": PAGE, "cache_width": W}
        torch.ops.smla.write_kv(x.select(1, 0), slots, self.data, **cache)
        out, lse, _ = torch.ops.smla.attend(x * 2, self.data, listed, softmax_scale=0.2, lse=True, **cache)
        return out, lse + 1


def model_inputs(tokens=T):
    return normal(tokens, H, W), torch.arange(tokens) % 7 - 1, integers(-1, SLOTS, tokens, K)


def model_result(tokens=T):
    x, slots, listed = model_inputs(tokens)
    cache = row_cache()
    smla.write_kv(x[:, 0], slots, cache)
    got = smla.attend(x * 2, cache, listed, softmax_scale=0.2, lse=True)
    return (got.out, got.lse + 1), cache.array


@pytest.mark.parametrize("as_buffer", [False, True])
@pytest.mark.parametrize("how", ["eager", "aot_eager", "strict export", "export"])
def test_a_model(how, as_buffer):
    model = Model(as_buffer)
    if "export" in how:
        dim = {0: torch.export.Dim("tokens", min=2)}
        with torch.no_grad():
            program = torch.export.export(
                model, model_inputs(), strict=how != "export", dynamic_shapes=(dim,) * 3
            )
        assert any("smla.write_kv" in str(node.target) for node in program.graph.nodes)
        call = program.module()
    else:
        call = compiled(model, how)
    for tokens in (T,) if how == "eager" else (T, 7):
        (out, lse), written = model_result(tokens)
        got = call(*model_inputs(tokens))
        assert torch.equal(got[0], out) and torch.equal(got[1], lse)
    if "export" not in how:
        data = model.data if as_buffer else model.cache.array
        assert torch.equal(data, model_result(tokens)[1] if tokens == T else written)


def test_inductor():
    """Without operations of PyTorch's own, for which inductor would call a C++ compiler."""

    def step(x, slots, cache, listed):
        smla.torch.write_kv(x[:, 0], slots, cache)
        return smla.torch.attend(x, cache, listed, softmax_scale=0.2).out

    x, slots, listed = model_inputs()
    mine, theirs = row_cache(), row_cache()
    got = compiled(step, "inductor")(x, slots, mine, listed)
    smla.write_kv(x[:, 0], slots, theirs)
    assert torch.equal(mine.array, theirs.array)
    assert torch.equal(got, smla.attend(x, theirs, listed, softmax_scale=0.2).out)


def test_one_compilation_serves_many_batches_and_layers():
    backend, first = CompileCounterWithBackend("aot_eager"), None
    call = compiled(smla.torch.attend, backend, dynamic=True)
    for seed, tokens in enumerate((5, 3, 17)):
        cache, q, listed = row_cache(seed=seed), normal(tokens, H, W), integers(-1, SLOTS, tokens, K)
        got = call(q, cache, listed, softmax_scale=0.2)
        assert torch.equal(got.out, smla.attend(q, cache, listed, softmax_scale=0.2).out)
        first = first or backend.frame_count
    assert backend.frame_count == first
    larger = row_cache(pages=9)
    listed = torch.full((5, 1), 9 * PAGE - 1, dtype=torch.int32)
    wanted = larger.array[-1, -W:].expand(5, H, W)
    torch.testing.assert_close(call(normal(5, H, W), larger, listed, softmax_scale=0.2).out, wanted)


def test_layouts():
    """Every way that smla.Cache takes memory gives the same through an operator."""
    q, listed = normal(T, H, W), rows()
    values = normal(SLOTS, W, seed=1)
    wide = torch.full((SLOTS, W + 4), torch.nan)
    wide[:, :W] = values
    apart = torch.full((4, PAGE * W + 8), torch.nan)
    apart[:, : PAGE * W] = values.view(4, -1)
    step = apart.stride(0) * 4
    caches = [
        smla.Cache(values.view(4, PAGE, W), "row_f32", PAGE),
        smla.Cache(values.view(-1), "row_f32", PAGE, width=W),
        smla.Cache(values.view(-1).view(torch.uint8), "row_f32", PAGE, width=W, pages=4),
        smla.Cache(wide, "row_f32", PAGE, width=W, pages=4, row_stride_bytes=4 * (W + 4)),
        smla.Cache(apart[:, : PAGE * W], "row_f32", PAGE, width=W),
        smla.Cache(apart.view(-1)[:-8], "row_f32", PAGE, width=W, pages=4, page_stride_bytes=step),
    ]
    wanted = smla.attend(q, caches[0], listed, softmax_scale=0.2).out
    for cache in caches:
        # Plain values, which every version of PyTorch's compiler can read: ctypes' are not.
        assert {type(value) for value in cache.layout.values()} <= {str, int, float}
        assert bytes(smla.Cache(cache.array, **cache.layout).abi) == bytes(cache.abi)
        assert torch.equal(smla.torch.attend(q, cache, listed, softmax_scale=0.2).out, wanted)
        assert smla.torch.score(q, q[..., 0], cache, torch.full((T,), 99, dtype=torch.int32)).shape == (
            T,
            SLOTS,
        )
    sparse_rows = torch.where(listed < 0, listed, listed // PAGE * 5 + listed % PAGE)
    cache = smla.Cache(values.view(4, PAGE, W), "row_f32", PAGE, page_rows=5)
    assert torch.equal(smla.torch.attend(q, cache, sparse_rows, softmax_scale=0.2).out, wanted)
    ends = torch.full((T,), 99, dtype=torch.int32)
    assert smla.torch.score(q, q[..., 0], cache, ends).shape == smla.score(q, q[..., 0], cache, ends).shape


def test_named_memory():
    """Integers that smla.tensor names, as PyTorch's own types."""
    call, arguments = bound("attend")
    q = arguments.pop("q").bfloat16()
    got = call(smla.tensor(q.view(torch.int16), "bf16"), **arguments).out
    assert got.dtype is torch.bfloat16 and torch.equal(got, call(q, **arguments).out)
    call, arguments = bound("score")
    q = arguments.pop("q")
    named = smla.tensor(q.view(torch.uint8), "e4m3")
    assert torch.equal(call(named, **arguments), call(q, **arguments))
    out = torch.full((T, H, W), 7, dtype=torch.int16)
    call, arguments = bound("attend")
    wanted = call(**arguments, out_dtype=torch.float16).out
    assert torch.equal(call(**arguments, out=smla.tensor(out, "f16")).out, wanted)
    assert torch.equal(out.view(torch.float16), wanted)


def test_scales():
    codes = normal(2 * PAGE, 576).to(torch.float8_e4m3fn).view(2, PAGE, 576)
    q, listed = normal(T, H, 576), integers(0, 2 * PAGE, T, K)
    for scale in (0.37, torch.tensor([0.37])):
        cache = smla.Cache(codes, "fp8_576", PAGE, scale=scale)
        plain = smla.Cache(codes.float() * 0.37, "row_f32", PAGE)
        got = smla.torch.attend(q, cache, listed, softmax_scale=0.02).out
        torch.testing.assert_close(
            got, smla.attend(q, plain, listed, softmax_scale=0.02).out, rtol=1e-4, atol=1e-5
        )
    small = q.to(torch.float8_e4m3fn)
    for scale in (0.5, torch.tensor([0.5])):
        got = smla.torch.attend(small, cache, listed, softmax_scale=0.02, q_scale=scale)
        wanted = smla.attend(small, cache, listed, softmax_scale=0.02, q_scale=0.5, out_dtype="bf16")
        assert torch.equal(got.out, wanted.out)


def test_copies_within_one_cache():
    cache, wanted = row_cache(), row_cache()
    pairs = torch.tensor([[0, 2], [3, 1]], dtype=torch.int32)
    wanted.array[2], wanted.array[1] = wanted.array[0], wanted.array[3]
    compiled(smla.torch.copy_pages)(cache, cache, pairs)
    assert torch.equal(cache.array, wanted.array)
    cache = row_cache()
    operator, args, more = recorded("copy_pages", (cache, cache, pairs), {})
    assert not any(value is cache.array for value in (*args[1:], *more.values()))  # it is written
    torch.library.opcheck(operator, args, more)
    smla.torch.copy_pages(cache, cache, pairs)
    assert torch.equal(cache.array, wanted.array)


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_some_outputs_given(backend):
    """Outputs that are not given are new, or absent if nobody asked for them."""
    call, arguments = bound("attend")
    wanted = call(**arguments, lse=True)
    call = compiled(call) if backend else call
    out = torch.full((T, H, W), 7.0)
    got = call(**arguments, out=out, lse=True)
    assert torch.equal(out, wanted.out) and torch.equal(got.lse, wanted.lse) and got.max_logits is None
    lse = torch.full((T, H), 7.0)
    got = call(**arguments, lse=lse)
    assert torch.equal(got.out, wanted.out) and torch.equal(lse, wanted.lse)
    scores, indices = normal(T, 40), torch.zeros(T, 6, dtype=torch.int32)
    select, quantise = smla.torch.select, smla.torch.quant_index_q
    if backend:
        select, quantise = compiled(select), compiled(quantise)
    got = select(scores, indices=indices, selected=True)
    for mine, theirs in zip(got, smla.select(scores, 6, selected=True)):
        assert same(memory(mine), memory(theirs))
    q_out = torch.zeros(T, 4, 64, dtype=torch.uint8)
    got = quantise(normal(T, 4, 128), normal(T, 4), factor=0.01, q_out=q_out)
    for mine, theirs in zip(
        got, smla.quant_index_q(normal(T, 4, 128), normal(T, 4), factor=0.01, dtype="e2m1")
    ):
        assert same(memory(mine), memory(theirs))


def test_k_by_position_and_by_name():
    for case, before_k in (("select", 1), ("score_select", 4)):
        name, args, more = CASES[case]()
        call = getattr(smla.torch, name)
        wanted = call(*args, **more)
        assert torch.equal(call(*args[:-1], **more, k=args[-1]).indices, wanted.indices)
        operator, given, named = recorded(name, args, more)
        named = {**named, "k": args[-1]}
        k, given = named.pop("k"), given[:before_k]
        for results in (operator(*given, k, **named), operator(*given, **named, k=k)):
            assert torch.equal(results[0], wanted.indices) and torch.equal(results[1], wanted.counts)


def test_nothing_may_be_spelt_out():
    call, arguments = bound("attend")
    nothing = dict.fromkeys(("lengths", "extra", "sink", "q_scale", "out_dtype", "value_width", "lse", "out"))
    got = call(**arguments, **nothing, max_logits=False)
    assert torch.equal(got.out, call(**arguments).out) and got.lse is None and got.max_logits is None
    mapped = smla.torch.map(*CASES["map"]()[1], page_tokens=2, rows=None, counts=None)
    assert mapped.shape == (T, K)


def test_empty_batches():
    got = smla.torch.attend(normal(0, H, W), row_cache(), rows()[:0], softmax_scale=1, lse=True)
    assert got.out.shape == (0, H, W) and got.lse.shape == (0, H)
    no_rows = smla.torch.attend(normal(2, H, W), row_cache(), rows()[:2, :0], softmax_scale=1, lse=True)
    assert not no_rows.out.any() and torch.isneginf(no_rows.lse).all()
    assert smla.torch.select(normal(0, 9), 3, selected=True).selected.shape == (0, 3)
    meta = smla.torch.norm(torch.empty(3, 1, W, device="meta", dtype=torch.bfloat16), eps=1e-6)
    assert (meta.device.type, meta.shape, meta.dtype) == ("meta", (3, 1, W), torch.bfloat16)


def test_calls_that_only_ask():
    """explain_call, check_call and prepare_call see through an operator; nothing is computed."""
    call, arguments = bound("attend")
    out = torch.full((T, H, W), 7.0)
    assert smla.explain_call(call, **arguments, out=out) == smla.explain_call(
        smla.attend, **arguments, out=out
    )
    smla.prepare_call(call, **arguments, out=out)
    arguments["rows"][1, 2] = SLOTS + 99
    with pytest.raises(smla.DataError, match="rows"):
        smla.check_call(call, **arguments, out=out)
    assert (out == 7).all()


def test_the_document(capsys):
    """Its code runs as it stands, and it names every operator."""
    text = (ROOT / "docs/python/torch.md").read_text()
    names = {}
    exec(compile("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)), "torch.md", "exec"), names)
    keys = torch.cat([names["latent"], names["rope"]], 1)
    assert torch.equal(names["out"][0, 0], keys[0, :512])  # its only row
    assert names["lse"].shape == (3, 16)
    got = names["program"].module()(keys, names["slots"], names["q"], names["rows"])
    torch.testing.assert_close(got, names["out"], rtol=0, atol=0)
    assert capsys.readouterr().out.startswith("q: got a tensor that requires grad")
    words = set(re.findall(r"\w+", text[: text.index("## Gradients")]))
    assert words.issuperset(smla.torch._OPERATORS)


def test_threads():
    call, arguments = bound("attend all")
    wanted, wrong = call(**arguments).out, []

    def work():
        for _ in range(20):
            if not torch.equal(call(**arguments).out, wanted):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_contexts(backend):
    """A call runs in the context that it is given, and else in the default one, compiled or not."""
    contexts = [smla.Context("cpu", threads=1, check_indices=True) for _ in range(2)]
    call, arguments = bound("attend")
    arguments["rows"][1, 2] = SLOTS + 99
    wanted = call(**arguments).out
    attend = compiled(call) if backend else call

    def met():  # which contexts saw the bad row since the last time
        return [context.read_error() is not None for context in contexts]

    for chosen in (0, 1, 0):
        assert torch.equal(attend(**arguments, context=contexts[chosen]).out, wanted)
        assert met() == [chosen == 0, chosen == 1]
    before = smla.default_context()
    try:
        smla.set_default_context(contexts[1])
        assert torch.equal(attend(**arguments).out, wanted)
        assert met() == [False, True]
        assert torch.equal(attend(**arguments, context=contexts[0]).out, wanted)
        assert met() == [True, False]
    finally:
        smla.set_default_context(before)
    attend(**arguments)
    assert met() == [False, False]


def on_gpu(value):
    if isinstance(value, smla.Cache):
        pages = value.pages if value.array.dim() == 1 else None
        data = value.array.cuda()
        return smla.Cache(data, value.format, value.page_tokens, width=value.abi.width, pages=pages)
    if isinstance(value, smla.Tensor):
        return smla.tensor(value.array.cuda(), value.dtype)
    return value.cuda() if isinstance(value, torch.Tensor) else value


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_on_a_gpu_as_the_stage(case):
    found = []
    for module in (smla, smla.torch):
        name, args, more = CASES[case]()
        args, more = [on_gpu(value) for value in args], {key: on_gpu(value) for key, value in more.items()}
        try:
            results = getattr(module, name)(*args, **more)
        except smla.Unsupported as error:
            found.append(str(error))
            continue
        results = results if isinstance(results, tuple) else (results,)
        found.append([memory(value) for value in (*results, *args, *more.values())])
    if isinstance(found[0], str):
        assert found[0] == found[1]
    else:
        assert all(same(mine, theirs) for mine, theirs in zip(*found))


def _captured(tokens, cache):
    """(graph, inputs, results) of attend and select; nothing ran on the capturing stream before."""
    inputs = normal(tokens, 16, 576).cuda().bfloat16(), integers(-1, 512, tokens, 1024).cuda()

    def step():
        got = smla.torch.attend(inputs[0], cache, inputs[1], softmax_scale=0.04, lse=True)
        return got.out, got.lse, smla.torch.select(got.out.float().view(tokens, -1), 300).indices

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    return graph, inputs, results, step


@pytest.mark.gpu
def test_graphs_keep_their_scratch():
    """Graphs of growing batches, replayed together on streams of their own, with other memory in between."""
    cache = smla.Cache(normal(8, 64, 576).cuda().bfloat16(), "row_bf16", 64)
    captures = [_captured(tokens, cache) for tokens in (1, 3, 64)]
    junk = [torch.full((1 << size,), 255, dtype=torch.uint8, device="cuda") for size in range(12, 28)]
    del junk
    for seed in range(3):
        for _, (q, listed), _, _ in captures:
            q.copy_(normal(*q.shape, seed=seed))
            listed.copy_(integers(-1, 512, *listed.shape, seed=seed))
        torch.cuda.synchronize()
        for graph, *_ in reversed(captures):  # the last one first: it may not need what another zeroed
            with torch.cuda.stream(torch.cuda.Stream()):
                graph.replay()
        torch.cuda.synchronize()
        for _, _, results, step in captures:
            for mine, theirs in zip(results, step()):
                assert torch.equal(mine, theirs)
