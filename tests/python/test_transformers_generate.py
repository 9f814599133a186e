"""generate() of transformers on smla: the same tokens and logits, in every way that it handles a cache."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no PyTorch")
transformers = pytest.importorskip("transformers", minversion="5.16", reason="no transformers 5.16")

import smla  # noqa: E402
from smla import transformers as on_smla  # noqa: E402
from transformers_models import KINDS, errors, generate, padded, pair, prompts, small  # noqa: E402

# f32 sums in another order. Of the largest logit; seen: 1e-6.
F32 = 2e-5
# The modules of V4 and GLM-5.3-Flash take no assisted generation.
ROLLBACK = [kind for kind in KINDS if kind in ("v32", "glm")]


def close(got, wanted):
    return float(errors(got, wanted).max()) <= F32


def same(got, wanted):
    assert torch.equal(got[0], wanted[0])
    assert close(got[1], wanted[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_greedy(kind, seed):
    model, fast = pair(kind, seed)
    assert on_smla.why_not(fast) == []
    same(generate(fast, prompts(), 24), generate(model, prompts(), 24))


def test_the_comparison_sees_a_changed_weight():
    model, fast = pair("v32")
    fast.model.layers[1].self_attn.kv_b_proj.weight.data[3, 5] += 0.02
    got, wanted = generate(fast, prompts(), 2), generate(model, prompts(), 2)
    assert not close(got[1][0], wanted[1][0])


@pytest.mark.parametrize("kind", KINDS)
def test_padding_on_the_left(kind):
    """Each row is what it is alone. transformers itself computes that for V3.2 and GLM; its V4 does not."""
    model, fast = pair(kind)
    lengths = [83, 30]
    ids, mask = padded(prompts(), lengths)
    got = generate(fast, ids, attention_mask=mask)
    for row, length in enumerate(lengths):
        tokens, logits, _ = generate(model, prompts()[row : row + 1, -length:])
        assert torch.equal(got[0][row, -length - 12 :], tokens[0])
        assert close(got[1][:, row], logits[:, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_beams(kind):
    """transformers without its cache: the one of V4 loses states of the compressors when beams change."""
    model, fast = pair(kind)
    options = {"num_beams": 4, "do_sample": False, "max_new_tokens": 10}
    wanted = model.generate(prompts(2, 90), use_cache=False, **options)
    assert torch.equal(fast.generate(prompts(2, 90), **options), wanted)


@pytest.mark.parametrize("kind", ROLLBACK)
def test_rejected_tokens_are_taken_back(kind):
    """Prompt lookup and an assistant: crop of the cache leaves no trace.

    The prompt repeats itself, so that lookup finds something; its scores lie so close that transformers' own
    lookup gives other tokens than transformers without.
    """
    _, fast = pair(kind)
    ids = prompts(1, 40).repeat(1, 3)
    wanted = generate(fast, ids, 20)
    same(generate(fast, ids, 20, prompt_lookup_num_tokens=5), wanted)
    same(generate(fast, ids, 20, assistant_model=copy.deepcopy(fast)), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_a_static_cache(kind):
    """Static caches of transformers (none for V4) and of smla give the same results as a dynamic cache."""
    _, fast = pair(kind)
    ids, mask = padded(prompts(), [83, 30])
    wanted = generate(fast, ids, attention_mask=mask)
    own = on_smla.Cache(fast.config, max_tokens=162, static=True)
    got = generate(fast, ids, attention_mask=mask, past_key_values=own)
    same(got, wanted)
    assert own.is_compileable and int(own.get_seq_length()) == 161
    if kind == "v4":
        return
    got = generate(fast, ids, attention_mask=mask, cache_implementation="static")
    same(got, wanted)
    assert got[2].is_compileable and int(got[2].get_seq_length()) == 161


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_serves_a_second_prompt(kind):
    """So does its copy, which is another cache; and it starts anew after reset()."""
    model, fast = pair(kind)
    first = generate(fast, prompts())
    more = torch.cat([first[0], prompts(2, 20, 7)], 1)
    other = copy.deepcopy(first[2])
    wanted = generate(model, more)
    for cache in (first[2], other):
        got = generate(fast, more, past_key_values=cache)
        same(got, wanted)
    first[2].reset()
    assert first[2].get_seq_length() == 0 and other.get_seq_length() > 0
    same(generate(fast, prompts(), past_key_values=first[2]), first)


@pytest.mark.parametrize("kind", KINDS)
def test_chunked_prefill_and_a_cache_that_grows(kind, monkeypatch):
    """Chunks of the caller, and those that a long one is taken in."""
    monkeypatch.setattr(on_smla._step, "STEP_TOKENS", 64)
    model, fast = pair(kind)
    ids, past = prompts(2, 220), transformers.DynamicCache(config=fast.config)
    with torch.no_grad():
        wanted = model(ids).logits
        parts = [fast(part, past_key_values=past).logits for part in ids.split([3, 180, 1, 36], 1)]
        assert close(torch.cat(parts, 1), wanted)
        assert close(fast(ids, use_cache=False).logits, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_on_the_right(kind):
    """Each row is what it is alone; with sdpa, transformers 5.16 does not compute that."""
    model, fast = pair(kind)
    lengths = [83, 30]
    ids, mask = (each.flip(1) for each in padded(prompts(), lengths))
    with torch.no_grad():
        got = fast(ids, attention_mask=mask).logits
        for row, length in enumerate(lengths):
            wanted = model(ids[row : row + 1, :length]).logits[0]
            assert close(got[row, :length], wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_cache_of_its_own(kind):
    """Room made at once, other formats, and the operations of a batch."""
    model, fast = pair(kind)
    past = on_smla.Cache(fast.config, max_tokens=400)
    same(generate(fast, prompts(), past_key_values=past), generate(model, prompts()))
    held = past.bytes
    assert past.layers[-1].is_croppable == (kind in ROLLBACK)
    assert held > 0 and past.layers[-1].session.options["max_tokens"] == 448
    if kind == "flash":
        return  # transformers' layers of linear attention have no such operations
    past.batch_repeat_interleave(2)
    assert past.batch_size == 4 and past.bytes > held
    past.batch_select_indices(torch.tensor([3, 0]))
    assert past.batch_size == 2
    ids = torch.cat([generate(model, prompts())[0][[1, 0]], prompts(2, 5, 3)], 1)
    same(generate(fast, ids, past_key_values=past), generate(model, ids))


def in_formats(*pairs):
    """Kinds of models that this transformers has, each with the format of a cache."""
    return pytest.mark.parametrize("kind, kv_format", [each for each in pairs if each[0] in KINDS])


@in_formats(("v32", "fp8_656"), ("glm", "fp8_656"), ("flash", "fp8_528"))
def test_fp8_records(kind, kv_format):
    """Within what the records round, and a smaller cache. Index keys stay rows, so tokens are the same."""
    model, rows = pair(kind)
    _, fast = pair(kind, kv_format=kv_format, index_format="row_f32")
    with torch.no_grad():
        past, other = (on_smla.Cache(model.config) for _ in range(2))
        got, wanted = fast(prompts(), past_key_values=past).logits, model(prompts()).logits
        rows(prompts(), past_key_values=other)
    relative = float((got - wanted).norm() / wanted.norm())
    assert F32 < relative < 0.1
    assert past.bytes < 0.6 * other.bytes


@in_formats(("v32", "fp8_656"), ("glm", "fp8_656"), ("v4", "fp8_584"))
@pytest.mark.parametrize("through", ["enable", "cache"])
@torch.no_grad()
def test_a_format_of_kv_alone(kind, kv_format, through):
    """Index keys stay rows, whose selection is that of a model without fp8 records."""
    told = {"kv_format": kv_format}
    rows, fast = (
        on_smla.enable(small(kind)),
        on_smla.enable(small(kind), **(told if through == "enable" else {})),
    )
    past, other = (
        on_smla.Cache(fast.config, **(told if through == "cache" else {})),
        on_smla.Cache(fast.config),
    )
    fast(prompts(), past_key_values=past)
    rows(prompts(), past_key_values=other)
    for layer, plain in zip(past.layers, other.layers):
        options = layer.session.options
        assert (options["kv_format"], options["index_format"]) == (kv_format, "row_f32")
        if layer is past.layers[0] and layer.session.topk is not None:
            assert np.array_equal(layer.session.topk, plain.session.topk)


@in_formats(("v32", "fp8_576"), ("v4", "fp8_512"), ("flash", "fp8_512"))
@torch.no_grad()
def test_a_format_with_one_scale(kind, kv_format):
    """It needs kv_scale, of enable() or of the cache that has the format; no other one takes its place."""
    told = {"kv_format": kv_format, "kv_scale": 0.0625}
    fast, ids = on_smla.enable(small(kind), **told), prompts()
    for past in (on_smla.Cache(fast.config), on_smla.Cache(fast.config, **told)):
        fast(ids, past_key_values=past)
        begun = [layer for layer in past.layers if hasattr(layer, "session")]  # not of linear attention
        assert {layer.session.options["kv_scale"] for layer in begun} == {0.0625}
    fast(ids, past_key_values=on_smla.Cache(fast.config, kv_format="row_bf16"))
    without = r"kv_scale: got 0, wanted a finite number above 0, because " + kv_format
    with pytest.raises(smla.InvalidArgument, match=without):
        fast(ids, past_key_values=on_smla.Cache(fast.config, kv_format=kv_format))
    with pytest.raises(smla.InvalidArgument, match=without):
        on_smla.enable(small(kind), kv_format=kv_format)(ids)
    with pytest.raises(smla.Unsupported, match="kv_scale: got 0.0625, wanted 0, or a kv_format"):
        on_smla.Cache(fast.config, kv_scale=0.0625)


@pytest.mark.parametrize("part", ["norm", "proj"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_weights_written_behind_the_back(dtype, part):
    """What `.data` writes shows in weights that are read where they lie; enable() renews the others."""
    fast = on_smla.enable(small("v32").to(dtype))
    before = fast(prompts()).logits
    for layer in fast.model.layers:
        for name, value in layer.self_attn.named_parameters():
            if part in name:
                value.data.copy_(value.data * 1.5)
    wanted = on_smla.enable(copy.deepcopy(fast))(prompts()).logits
    seen = fast(prompts()).logits
    assert torch.equal(seen, wanted) == (dtype is torch.bfloat16 and part == "proj")
    assert not torch.equal(wanted, before)
    assert torch.equal(on_smla.enable(fast)(prompts()).logits, wanted)


def test_weights_that_change_are_the_ones_used():
    """Written in place, replaced, and moved; a cache of the old ones is refused."""
    model, fast = pair("v32")
    past = generate(fast, prompts())[2]
    with torch.no_grad():
        for each in (model, fast):
            attention = each.model.layers[1].self_attn
            attention.q_a_layernorm.weight.mul_(1.5)
            attention.o_proj.weight = torch.nn.Parameter(-attention.o_proj.weight)
    same(generate(fast, prompts()), generate(model, prompts()))
    with pytest.raises(smla.Error, match="a cache of other weights"):
        generate(fast, torch.cat([prompts(), prompts()], 1), past_key_values=past)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_shared(kind):
    _, fast = pair(kind)
    for attention in on_smla._attentions(fast):
        info = attention.smla_layer().info
        assert info["borrowed_bytes"] == info["weight_bytes"] > 0


def logits(model, ids):
    """[B,T,V] float64: a prompt, then single tokens."""
    past = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        parts = ids.split([ids.shape[1] - 4, 1, 1, 1, 1], 1)
        return torch.cat([model(part, past_key_values=past).logits for part in parts], 1).double()


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_against_float64(kind):
    """No further from float64 on the same weights than transformers' own bf16. The prompt is too short for a
    selection and all experts are taken: a choice that flips by rounding outweighs what attention rounds."""
    squares = torch.zeros(2, dtype=torch.float64)
    for seed in range(3):
        model = small(kind, seed, n_routed_experts=2, num_experts_per_tok=2).bfloat16()
        fast, exact = on_smla.enable(copy.deepcopy(model)), copy.deepcopy(model).double()
        exact.set_attn_implementation("eager")
        exact.set_experts_implementation("eager")
        ids = prompts(2, 60, seed)
        wanted = logits(exact, ids)
        for number, each in enumerate((fast, model)):
            squares[number] += ((logits(each, ids) - wanted).norm() / wanted.norm()) ** 2
    ours, theirs = (squares / 3).sqrt().tolist()
    assert 1e-3 < ours < theirs, (ours, theirs)


def test_activations_of_a_bf16_model(monkeypatch):
    """bf16, as transformers' are, so that products take kernels of bf16 operands; f32 where asked for."""
    found, make = [], smla.Layer.from_tensors

    def spy(*args, **options):
        found.append((options["activations"], options["queries"]))
        return make(*args, **options)

    monkeypatch.setattr(on_smla._modules.Layer, "from_tensors", spy)
    for model, queries in (
        (small("v32").bfloat16(), None),
        (small("v32").bfloat16(), "f32"),
        (small("v32"), None),
        (small("v32"), "bf16"),
    ):
        on_smla.enable(model, queries=queries).model.layers[0].self_attn.smla_layer()
    assert list(dict.fromkeys(found)) == [("bf16", "bf16"), ("f32", "f32"), ("f32", "bf16")]


def test_index_queries_of_a_bf16_model():
    """They are bf16, as transformers' are, so that kernels of bf16 operands take them: rounding flips a few
    selections against f32 queries over the same bf16 keys, and no more."""
    found = []
    for queries in ("f32", "bf16"):
        fast = on_smla.enable(small("v32").bfloat16(), queries=queries)
        past = on_smla.Cache(fast.config, kv_format="row_bf16", index_format="row_bf16")
        with torch.no_grad():
            fast(prompts(1, 400), past_key_values=past)
        found.append(torch.from_numpy(past.layers[0].session.topk))
    same = sum(len(set(a) & set(b)) for a, b in zip(*[each.tolist() for each in found]))
    assert 0.98 < same / sum(len(set(row)) for row in found[0].tolist()) < 1
