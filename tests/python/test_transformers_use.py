"""smla.transformers as callers find it: releases, refusals, from_pretrained, a compiled decode step."""

import copy
import os
import subprocess
import sys
import warnings

import pytest
from conftest import ROOT

torch = pytest.importorskip("torch", reason="no PyTorch")
transformers = pytest.importorskip("transformers", minversion="5.16", reason="no transformers 5.16")

import smla  # noqa: E402
from smla import transformers as on_smla  # noqa: E402
from smla.transformers import _versions  # noqa: E402
from transformers_models import KINDS, generate, padded, pair, prompts, small, text_config  # noqa: E402


@pytest.mark.parametrize("version", ["5.15.9", "4.57.1", "6.0.0", "next"])
def test_releases_that_are_refused(version):
    with pytest.raises(ImportError, match=f"got transformers {version}, wanted transformers 5.16 to 5.24"):
        _versions.check_version(version)


def test_releases_that_are_taken():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for version in ("5.16.0", "5.17.0rc1", "5.24.4"):
            _versions.check_version(version)
    with pytest.warns(UserWarning, match="transformers 5.25.0 is newer than the tested releases"):
        _versions.check_version("5.25.0")


def test_a_missing_package_is_named(tmp_path):
    (tmp_path / "transformers.py").write_text("raise ImportError('none here')\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT / "python")])
    code = "import smla.transformers"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    last = done.stderr.strip().splitlines()[-1]
    assert (
        done.returncode == 1
        and "transformers cannot be imported (none here), wanted transformers 5.16" in last
    )


def test_refusals():
    _, fast = pair("v32")
    ids = prompts()
    with pytest.raises(smla.Error, match="got a forward that records gradients, wanted torch.no_grad"):
        fast(ids)
    with torch.no_grad(), pytest.raises(smla.Error, match="output_attentions: got True, wanted False"):
        fast(ids, output_attentions=True)
    with pytest.raises(smla.InvalidArgument, match="kv_format: got 'fp9', wanted one of .*fp8_656"):
        on_smla.enable(fast, kv_format="fp9")
    with pytest.raises(smla.InvalidArgument, match="threads: got -1"):
        on_smla.enable(fast, threads=-1)
    with pytest.raises(smla.Error, match="model: got Linear, wanted a model of transformers"):
        on_smla.enable(torch.nn.Linear(2, 2))
    llama = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=16
    )
    other = transformers.LlamaForCausalLM(llama)
    with pytest.raises(smla.Error, match="got LlamaForCausalLM, wanted .* attention of DeepseekV32"):
        on_smla.enable(other)
    assert on_smla.why_not(other)[0].startswith("LlamaForCausalLM has no attention of")


@pytest.mark.skipif("flash" not in KINDS, reason="no glm5_next in this transformers")
@torch.no_grad()
def test_a_model_with_an_image_encoder():
    """Only the attention of the language model runs on smla, and disable() takes it back."""
    model, fast = pair("flash")
    names = [config._attn_implementation for config in (fast.config, fast.config.vision_config)]
    assert names == [model.config._attn_implementation] * 2 != ["smla"] * 2
    assert text_config(fast)._attn_implementation == "smla"
    pixels = torch.randn(4, 3 * 2 * 14 * 14)
    images = [
        each.model.visual(pixels, torch.tensor([[1, 2, 2]])).last_hidden_state for each in (fast, model)
    ]
    assert torch.equal(*images)
    on_smla.disable(fast)
    assert text_config(fast)._attn_implementation == text_config(model)._attn_implementation
    assert torch.equal(fast(prompts()).logits, model(prompts()).logits)
    fast.set_attn_implementation({"text_config": "smla"})  # as attn_implementation of from_pretrained
    fast(prompts())
    assert all(isinstance(each, on_smla.OnSmla) for each in on_smla._attentions(fast))
    fast.set_attn_implementation("smla")
    with pytest.raises(smla.Unsupported, match="does not replace the attention of this model"):
        fast.model.visual(pixels, torch.tensor([[1, 2, 2]]))


@pytest.mark.skipif("flash" not in KINDS, reason="no glm5_next in this transformers")
@torch.no_grad()
def test_masks_of_pools():
    """Pools are of neighbours, so no padding may stand between tokens, in a step or between steps."""
    _, fast = pair("flash")
    ids, mask = prompts(2, 20), torch.ones(2, 20, dtype=torch.int64)
    mask[1, 5:8] = 0
    text = "attention_mask: got padding between tokens, wanted padding only before the first token or after"
    with pytest.raises(smla.Error, match=text):
        fast(ids, attention_mask=mask)
    past = on_smla.Cache(fast.config)
    mask[1, 8:] = 0
    fast(ids, attention_mask=mask, past_key_values=past)
    with pytest.raises(smla.Error, match=text):
        fast(ids[:, :1], past_key_values=past)


def test_a_cache_by_either_name():
    """transformers 5.24 calls `cache` what was past_key_values. One of an unknown name is not passed over."""
    _, fast = pair("v32")
    module, hidden = fast.model.layers[0].self_attn, torch.randn(1, 5, fast.config.hidden_size)
    with torch.no_grad():
        for name in ("past_key_values", "cache"):
            past = transformers.DynamicCache(config=fast.config)
            module(hidden, **{name: past})
            assert past.get_seq_length() == 5
        with pytest.raises(smla.Error, match="state: got a cache, wanted cache or past_key_values"):
            module(hidden, state=past)


LOADED = """
import pickle, sys, torch, transformers
import smla.transformers
from transformers_models import generate, prompts, text_config
texts, images = transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText
kind = lambda folder: images if folder.endswith("flash") else texts
by_name, folders = sys.argv[1] == "name", sys.argv[2:]
how = {"attn_implementation": "smla"} if by_name else {}
if not by_name:
    smla.transformers.enable(kv_format="row_f32")
for folder in folders:
    model = kind(folder).from_pretrained(folder, **how)
    print(generate(model.eval(), prompts(), 8)[0].tolist())
    assert smla.transformers.why_not(model) == [] and text_config(model)._attn_implementation == "smla"
    assert {type(each).__name__[:4] for each in smla.transformers._attentions(model)} == {"Smla"}
smla.transformers.disable()
for folder in folders:
    plain = kind(folder).from_pretrained(folder)  # must run on transformers
    assert text_config(plain)._attn_implementation != "smla"
    assert "Smla" not in {type(each).__name__[:4] for each in smla.transformers._attentions(plain)}
    pickle.loads(pickle.dumps(plain))
"""


@pytest.mark.parametrize("how", ["enable", "name"])
def test_saved_models(how, tmp_path):
    """Tests enable() before from_pretrained, and attn_implementation="smla", in a new process."""
    models = {tmp_path / kind: small(kind).eval() for kind in KINDS}
    for folder, model in models.items():
        model.save_pretrained(folder)
    path = os.pathsep.join(
        [str(ROOT / "python"), str(ROOT / "tests/python"), os.environ.get("PYTHONPATH", "")]
    )
    done = subprocess.run(
        [sys.executable, "-c", LOADED, how, *map(str, models)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    tokens = done.stdout.strip().splitlines()[-len(models) :]
    assert tokens == [str(generate(model, prompts(), 8)[0].tolist()) for model in models.values()]


def compiled(model, graphs):
    """model's forward as one graph, which is added to graphs each time that it is compiled."""

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    return torch.compile(model.forward, fullgraph=True, backend=count)


@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_decode_step(kind):
    """One graph for the whole step, no recompilation as the cache fills, the tokens of generate()."""
    _, fast = pair(kind)
    ids = prompts()
    wanted = generate(fast, ids, 6)[0][:, ids.shape[1] :]
    cache = on_smla.Cache(fast.config, max_tokens=ids.shape[1] + 8, static=True)
    graphs = []
    step = compiled(fast, graphs)
    with torch.no_grad():
        token = fast(ids, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
        got = [token]
        for _ in range(5):
            token = step(token, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
            got.append(token)
    assert torch.equal(torch.cat(got, 1), wanted)
    assert len(graphs) == 1, len(graphs)
    for node in graphs[0].graph.nodes:  # columns of a selection that the operator returns, 0: none
        if node.target is torch.ops.smla.transformers_step.default:
            assert node.args[-1] in (0, on_smla._attentions(fast)[0].smla_layer().info["topk"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_step_of_a_padded_batch(kind):
    """The mask keeps its shape, so that one graph serves all steps."""
    _, fast = pair(kind)
    steps, graphs = 5, []
    ids, mask = padded(prompts(), [83, 30])
    wanted = generate(fast, ids, 1 + steps, attention_mask=mask)[0][:, ids.shape[1] :]
    cache = on_smla.Cache(fast.config, max_tokens=ids.shape[1] + steps, static=True)
    step = compiled(fast, graphs)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    room = torch.cat([mask, torch.ones(len(ids), steps, dtype=mask.dtype)], 1)
    with torch.no_grad():
        first = {"attention_mask": mask, "position_ids": positions}
        got = [fast(ids, past_key_values=cache, **first).logits[:, -1:].argmax(-1)]
        for number in range(1, 1 + steps):
            now = {"attention_mask": room, "position_ids": positions[:, -1:] + number}
            got.append(step(got[-1], past_key_values=cache, **now).logits[:, -1:].argmax(-1))
    assert torch.equal(torch.cat(got, 1), wanted)
    assert len(graphs) == 1, len(graphs)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "flash"])  # which knows no such masks
def test_packed_sequences_are_refused(kind):
    """In plain words; where the step is compiled, by the compiler, which evaluates no mask of tensors."""
    _, fast = pair(kind)
    packed = torch.cat([torch.arange(75), torch.arange(75)])[None].expand(2, -1)
    options = {"position_ids": packed, "use_cache": False}
    with torch.no_grad():
        with pytest.raises(smla.Error, match="attention_mask: got packed sequences or a mask function"):
            fast(prompts(), **options)
        with pytest.raises(Exception, match="(?i)closure|constant"):
            compiled(fast, [])(prompts(), **options)


class OnGpu:
    """Positions of a GPU, as far as a copy to the host is concerned; counts its copies."""

    device = torch.device("cuda")

    def __init__(self, values, inference=False):
        self.values, self.copies, self._version, self.inference = torch.tensor(values), 0, 0, inference

    def is_inference(self):
        return self.inference

    def to(self, *wanted):
        self.copies += 1
        return self.values.to(*wanted)


def test_positions_are_copied_once_for_all_layers():
    from smla.transformers import _step

    layers = [object() for _ in range(3)]
    first, second = OnGpu([[1, 2]]), OnGpu([[3, 4]])
    for layer in layers:
        assert _step._on_host(first, layer).tolist() == [[1, 2]]
    assert first.copies == 1
    first.values = torch.tensor([[5, 6]])  # of the next step, and written past PyTorch
    for layer in layers:
        assert _step._on_host(first, layer).tolist() == [[5, 6]]
    assert first.copies == 2
    assert _step._on_host(second, layers[0]).tolist() == [[3, 4]]
    second.values, second._version = torch.tensor([[9, 9]]), 1  # written in place within a step
    assert _step._on_host(second, layers[1]).tolist() == [[9, 9]]
    third = OnGpu([[5]], inference=True)  # has no version
    for layer in layers:
        assert _step._on_host(third, layer).tolist() == [[5]]
    assert third.copies == 3


@pytest.mark.parametrize("how", ["set", "build", "padded", "generate"])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_name_of_the_implementation_alone(kind, how):
    """attn_implementation="smla" has the same effect as enable(model)."""
    model, ids, options = small(kind), prompts(2, 70), {}
    fast = on_smla.enable(copy.deepcopy(model))
    if how == "build":
        named = type(model)._from_config(copy.deepcopy(model.config), attn_implementation="smla")
        named.load_state_dict(model.state_dict())
        named.eval()
    else:
        named = copy.deepcopy(model)
        named.set_attn_implementation("smla")
    if how == "padded":
        ids, options["attention_mask"] = padded(ids, [70, 61])
    if how == "generate":
        assert generate(named, ids)[0].tolist() == generate(fast, ids)[0].tolist()
    else:
        assert torch.equal(named(ids, **options).logits, fast(ids, **options).logits)
    assert all(isinstance(each, smla.transformers.OnSmla) for each in on_smla._attentions(named))
    named.set_attn_implementation("eager")
    theirs = copy.deepcopy(model)
    theirs.set_attn_implementation("eager")
    assert torch.equal(named(ids, **options).logits, theirs(ids, **options).logits)


@torch.no_grad()
def test_the_name_where_it_cannot_be_served():
    llama = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=99
    )
    model = transformers.AutoModelForCausalLM.from_config(llama, attn_implementation="smla")
    with pytest.raises(smla.Unsupported, match="does not replace the attention of this model: either"):
        model(prompts(1, 5) % 90)
    named = small("v32")
    named.set_attn_implementation("smla")
    with pytest.raises(Exception, match="does not replace|Unsupported"):
        compiled(named, [])(prompts(1, 5))


@pytest.mark.parametrize("kind", KINDS)
def test_rounded_frequencies_are_warned_of(kind):
    model = small(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        on_smla.enable(model)
        assert on_smla.why_not(model) == []
        with torch.device("meta"):
            bare = type(model)(model.config)
        assert on_smla.why_not(bare)[0].endswith("wanted one device, cpu or cuda")
    for convert in (lambda: model.to(torch.bfloat16), model.float):
        convert()
        if kind == "flash":  # only its image encoder rotates
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                on_smla.enable(model)
            continue
        for call in (on_smla.enable, on_smla.why_not):
            with pytest.warns(
                UserWarning, match=r"inv_freq \(b?float\d+\) is rounded, .*from_pretrained"
            ) as seen:
                call(model)
            assert len(seen) == 1 and seen[0].filename == __file__
