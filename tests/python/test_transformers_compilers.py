"""A decode step through PyTorch's compilers, which hand an operator copies of what it writes."""

import shutil

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch")
transformers = pytest.importorskip("transformers", minversion="5.16", reason="no transformers 5.16")

import smla  # noqa: E402
from smla import transformers as on_smla  # noqa: E402
from transformers_models import V4_LAYERS, errors, pair, prompts, small  # noqa: E402

FIRST, STEPS = 100, 5
F32 = 2e-5


# inductor takes minutes for V4: there without position_ids, so that layers read what comes of the clock.
CASES = [
    (kind, backend, given)
    for kind in ("v32", "v4")
    for backend in ("eager", "aot_eager", "inductor")
    for given in (False, True)
    if not (kind == "v4" and backend == "inductor" and given)
]


@pytest.mark.parametrize("kind, backend, given", CASES)
def test_steps(kind, backend, given):
    """Each compiled step has the logits of an eager one; a length that was read stays what it was."""
    if backend == "inductor" and not any(map(shutil.which, ("g++", "clang++"))):
        pytest.skip("no C++ compiler for inductor")
    fewer = {"num_hidden_layers": 2, "layer_types": V4_LAYERS[:2], "mlp_layer_types": ["moe"] * 2}
    fast = on_smla.enable(small(kind, **(fewer if kind == "v4" else {})))
    ids = prompts(2, FIRST + STEPS)
    past, cache = (on_smla.Cache(fast.config, max_tokens=128, static=static) for static in (False, True))
    torch._dynamo.reset()
    step = torch.compile(fast.forward, fullgraph=True, backend=backend)
    with torch.no_grad():
        for each in (past, cache):
            fast(ids[:, :FIRST], past_key_values=each)
        for t in range(FIRST, FIRST + STEPS):
            before = cache.get_seq_length()
            now = {"position_ids": torch.tensor([[t]])} if given else {}
            got = step(ids[:, t : t + 1], past_key_values=cache, **now).logits
            wanted = fast(ids[:, t : t + 1], past_key_values=past, **now).logits
            assert float(errors(got, wanted).max()) < F32, t
            assert int(before) == t
            assert [int(layer.clock) for layer in cache.layers] == [t + 1] * len(cache.layers)


def test_a_step_that_failed_midway(monkeypatch):
    """The compiler drops the clocks of layers that were done: the next step says so, and reset() mends it."""
    _, fast = pair("v32")
    ids = prompts(2, FIRST + 1)
    cache = on_smla.Cache(fast.config, max_tokens=128, static=True)
    torch._dynamo.reset()
    step = torch.compile(fast.forward, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        fast(ids[:, :FIRST], past_key_values=cache)
        wanted = step(ids[:, FIRST:], past_key_values=cache).logits
        with monkeypatch.context() as patch:
            patch.setattr(cache.layers[1], "hold", None)
            with pytest.raises(TypeError):
                step(ids[:, FIRST:], past_key_values=cache)
        with pytest.raises(smla.Error, match=r"a cache whose last step failed midway, .*after reset\(\)"):
            step(ids[:, FIRST:], past_key_values=cache)
        cache.reset()
        fast(ids[:, :FIRST], past_key_values=cache)
        assert torch.equal(step(ids[:, FIRST:], past_key_values=cache).logits, wanted)
