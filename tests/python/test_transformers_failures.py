"""Steps of a model on smla that fail or that Ctrl-C ends, and what their caches hold then."""

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch")
transformers = pytest.importorskip("transformers", minversion="5.16", reason="no transformers 5.16")

import smla  # noqa: E402
from smla import transformers as on_smla  # noqa: E402
from transformers_models import KINDS, pair, prompts, small  # noqa: E402

LONG = 1200  # three parts
AGAIN = r"wanted an empty cache, or this one after reset\(\)"


def held(past):
    """(columns, tokens of the session) of each layer that was begun."""
    begun = [layer for layer in past.layers if getattr(layer, "session", None)]  # not of linear attention
    return [(layer.tokens, layer.session.length()) for layer in begun]


def interrupted(fast, past, ids, layer, part, patch):
    """A forward that Ctrl-C ends behind part `part` of a layer's step."""
    run, calls = on_smla._step._run_part, []

    def stop(*args):
        run(*args)
        calls.append(None)
        if len(calls) == 3 * layer + part + 1:
            raise KeyboardInterrupt

    with patch.context() as now:
        now.setattr(on_smla._step, "_run_part", stop)
        with pytest.raises(KeyboardInterrupt):
            fast(ids, past_key_values=past)


@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_prompt_that_is_interrupted(kind, part, monkeypatch):
    """The first layer is as it was before, and the cache goes on as if nothing had been."""
    _, fast = pair(kind)
    ids, past = prompts(1, LONG), on_smla.Cache(fast.config)
    wanted = fast(ids[:, :30]).logits
    interrupted(fast, past, ids, 0, part, monkeypatch)
    assert held(past) == [(0, 0)]
    if kind == "flash":  # layers of linear attention before it hold the step
        with pytest.raises(smla.Error, match=f"got a cache whose last step failed midway, {AGAIN}"):
            fast(ids[:, :30], past_key_values=past)
        past.reset()
        assert torch.equal(fast(ids[:, :30], past_key_values=past).logits, wanted)
        return
    assert torch.equal(fast(ids[:, :30], past_key_values=past).logits, wanted)
    other = ids.flip(1)
    if kind == "v4":  # a window is all that it keeps
        interrupted(fast, past, other, 0, part, monkeypatch)
        if part:
            with pytest.raises(smla.Error, match=f"got a cache whose last step failed midway, {AGAIN}"):
                fast(ids[:, 30:40], past_key_values=past)
            past.reset()
            fast(ids[:, :30], past_key_values=past)
    else:
        interrupted(fast, past, other, 0, part, monkeypatch)
    assert held(past)[0] == (30, 30)
    whole = fast(ids[:, :40]).logits[:, 30:]
    got = fast(ids[:, 30:40], past_key_values=past).logits
    assert (got - whole).abs().max() < 2e-5 * whole.abs().max()


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_layers_that_a_failure_left_apart(kind, monkeypatch):
    """Layers before the failing one hold the step, those from it on do not: refused until reset()."""
    between = {"layer_types": ["full_attention", "linear_attention", "full_attention"]}
    more = {**between, "indexer_types": ["full"] * 3} if kind == "flash" else {}
    fast = on_smla.enable(small(kind, **more))
    ids, past = prompts(1, LONG), on_smla.Cache(fast.config)
    wanted = fast(ids[:, :30]).logits
    interrupted(fast, past, ids, 1, 1, monkeypatch)
    assert held(past) == [(LONG, LONG), (0, 0)]
    first, second = (each.layer_idx for each in on_smla._attentions(fast)[:2])
    got = f"got 0 tokens in layer {second}, {LONG} in layer {first}, which is left by a failed step"
    text = f"{got}, {AGAIN}"
    with pytest.raises(smla.Error, match=text):
        fast(ids[:, :30], past_key_values=past)
    past.reset()
    assert torch.equal(fast(ids[:, :30], past_key_values=past).logits, wanted)


@torch.no_grad()
def test_an_empty_batch():
    _, fast = pair("v32")
    with pytest.raises(smla.Error, match=r"hidden_states: got shape \[0, 5, 128\], wanted one sequence"):
        fast(torch.zeros(0, 5, dtype=torch.int64))


@torch.no_grad()
def test_holes_in_the_mask_of_v4():
    """The mask is named where the caller gave no position_ids of its own."""
    _, fast = pair("v4")
    mask = torch.ones(2, 20, dtype=torch.int64)
    mask[1, 5:8] = 0
    text = "attention_mask: got padding after tokens, in sequence 1, wanted padding only before the first"
    with pytest.raises(smla.Error, match=text):
        fast(prompts(2, 20), attention_mask=mask)
    counted = (mask.cumsum(1) - 1).clamp(min=0)
    fast(prompts(2, 20), attention_mask=mask, position_ids=counted)


@pytest.mark.parametrize("tokens", [-1, -5, 1.5, None])
def test_room_that_is_no_number(tokens):
    with pytest.raises(
        smla.InvalidArgument, match=f"max_tokens: got {tokens}, wanted an integer .* 0 or more"
    ):
        on_smla.Cache(pair("v32")[1].config, max_tokens=tokens)
