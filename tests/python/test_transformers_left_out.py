"""What a model's attention does beyond its weights is refused by name, never left out."""

import copy
import re

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch")
transformers = pytest.importorskip("transformers", minversion="5.16", reason="no transformers 5.16")

import smla  # noqa: E402
from smla import transformers as on_smla  # noqa: E402
from torch import nn  # noqa: E402
from transformers_models import KINDS, prompts, small, text_config  # noqa: E402


class Adapter(nn.Linear):
    """A low-rank adapter as a subclass that shares the weight, as many libraries write it."""

    def __init__(self, base):
        super().__init__(base.in_features, base.out_features, bias=False)
        self.weight = base.weight
        self.lora_A = nn.Parameter(torch.randn(4, base.in_features))
        self.lora_B = nn.Parameter(torch.randn(base.out_features, 4))

    def forward(self, x):
        return super().forward(x) + x @ self.lora_A.T @ self.lora_B.T


class Wrapper(nn.Module):
    """An adapter as peft writes it: a module around the projection."""

    def __init__(self, base):
        super().__init__()
        self.base_layer = base


Wrapper.__module__ = "peft.tuners.lora.layer"


def adapter(parent, name):
    setattr(parent, name, Adapter(getattr(parent, name)))


def wrapper(parent, name):
    setattr(parent, name, Wrapper(getattr(parent, name)))


def bias(parent, name):
    getattr(parent, name).bias = nn.Parameter(torch.randn(getattr(parent, name).out_features))


def hook(parent, name):
    getattr(parent, name).register_forward_hook(lambda module, args, out: out * 1.5)


def pre_hook(parent, name):
    getattr(parent, name).register_forward_pre_hook(lambda module, args: (args[0] * 1.5,))


def own_forward(parent, name):
    getattr(parent, name).forward = lambda x: x


CHANGES = {
    adapter: r"a test_transformers_left_out\.Adapter",
    wrapper: r"a peft\.tuners\.lora\.layer\.Wrapper, .*merge_and_unload",
    bias: "a bias",
    hook: "a forward hook",
    pre_hook: "a forward pre-hook",
    own_forward: "a custom forward",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_every_projection(kind, change):
    """Before enable() and after a first call, by why_not and by the next call; without it all is well."""
    plain = small(kind)
    assert on_smla.why_not(plain) == []
    fast = on_smla.enable(copy.deepcopy(plain))
    for number, first in enumerate(on_smla._attentions(plain)):
        index = first.layer_idx
        for name, module in first.named_modules():
            if not isinstance(module, nn.Linear):
                continue
            attention, later = (copy.deepcopy(on_smla._attentions(each)[number]) for each in (plain, fast))
            later.smla_layer()
            parent, _, last = name.rpartition(".")
            for each in (attention, later):
                change(each.get_submodule(parent), last)
                (reason,) = on_smla._modules.why_not(each)
                assert re.match(f"{name}: got {CHANGES[change]}", reason), reason
            with pytest.raises(smla.Error, match=rf"layer {index} \(\w+\)\.{name}: got {CHANGES[change]}"):
                later.smla_layer()


@torch.no_grad()
def test_a_call_refuses():
    fast = on_smla.enable(small("v32"))
    fast(prompts())
    assert on_smla.why_not(fast) == []
    fast.model.layers[1].self_attn.o_proj.register_forward_hook(lambda module, args, out: out * 2)
    with pytest.raises(smla.Error, match=r"layer 1 \(DeepseekV32Attention\)\.o_proj: got a forward hook"):
        fast(prompts())
    assert on_smla.why_not(fast)[0].startswith("layer 1: o_proj: got a forward hook, wanted a module")


@torch.no_grad()
def test_hooks_of_the_attention_itself_are_called():
    fast = on_smla.enable(small("v32"))
    seen = []
    fast.model.layers[1].self_attn.register_forward_hook(lambda module, args, out: seen.append(module))
    fast(prompts())
    assert len(seen) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_why_not_of_a_model_as_it_is(kind):
    """It says what enable() would find and leaves the model alone."""
    model = small(kind)
    before = [(type(each), sorted(vars(each))) for each in on_smla._attentions(model)]
    assert on_smla.why_not(model) == []
    assert before == [(type(each), sorted(vars(each))) for each in on_smla._attentions(model)]
    assert text_config(model)._attn_implementation != "smla"
    meta = small(kind).to("meta")
    first = on_smla._attentions(meta)[0].layer_idx
    reason = f"layer {first}: weights: got some on meta, wanted one device, cpu or cuda"
    assert on_smla.why_not(meta)[0] == reason
