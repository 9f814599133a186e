"""smla.transformers: columns that hold tokens and columns of padding, in a cache and in a step's mask."""

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch")
transformers = pytest.importorskip("transformers", minversion="5.16", reason="no transformers 5.16")

import smla  # noqa: E402
from smla.transformers._columns import Columns  # noqa: E402
from transformers_models import padded, pair, prompts  # noqa: E402


def real(*rows):
    return torch.tensor([[each == "1" for each in row] for row in rows])


def test_columns():
    columns = Columns.of(real("0011", "1111"))
    assert columns.tokens == (2, 4) and columns.count == 4
    assert torch.equal(columns.real, real("0011", "1111"))
    assert columns.first(3).tokens == (1, 3)
    assert columns.first(0) == Columns.none(2)
    assert columns.chosen([1, 1]) == Columns((4, 4), 4)
    assert columns.chosen([1, 0, 0]).tokens == (4, 2, 2)
    whole = Columns.of(real("111", "111"))
    assert whole == Columns((3, 3), 3) and torch.equal(whole.real, real("111", "111"))
    assert whole.first(2) == Columns((2, 2), 2) and whole.chosen([0]) == Columns((3,), 3)


def steps(model, ids, mask, past, count=3, mode=torch.no_grad):
    """A prompt and some tokens, one after the other, each with a mask of its own -> logits."""
    with mode():
        out = [model(ids, attention_mask=mask, past_key_values=past).logits[:, -1]]
        for number in range(1, count + 1):
            longer = torch.nn.functional.pad(mask, (0, number), value=1)
            out.append(model(ids[:, :1], attention_mask=longer, past_key_values=past).logits[:, -1])
    return torch.stack(out)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_mask_is_compared_once_for_all_layers(monkeypatch, mode):
    _, fast = pair("v32")
    ids, mask = padded(prompts(3, 20), [20, 13, 5])
    past = transformers.DynamicCache(config=fast.config)
    compared, equal = [], torch.equal
    monkeypatch.setattr(torch, "equal", lambda *both: compared.append(both) or equal(*both))
    steps(fast, ids, mask, past, mode=mode)
    assert len(past.layers) > 1 and len(compared) == 3  # steps behind the prompt
    held = [layer.columns for layer in past.layers]
    assert held[0].tokens == tuple((mask.sum(1) + 3).tolist())
    assert all(each.padded.data_ptr() == held[0].padded.data_ptr() for each in held)


def test_without_padding_nothing_is_held():
    _, fast = pair("v32")
    ids = prompts(3, 20)
    with_mask, ranked, without = (transformers.DynamicCache(config=fast.config) for _ in range(3))
    wanted = steps(fast, ids, torch.ones_like(ids), with_mask)
    ones = torch.ones(3, 1, 1, 20, dtype=torch.bool)  # a mask of this rank is handed on as it is
    for past, mask in ((ranked, ones), (without, None)):
        with torch.no_grad():
            fast(ids, attention_mask=mask, past_key_values=past)
            for _ in range(3):
                last = fast(ids[:, :1], past_key_values=past).logits[:, -1]
        assert torch.equal(last, wanted[-1])
    for past in (with_mask, ranked, without):
        assert all(layer.columns == Columns((23,) * 3, 23) for layer in past.layers)


def test_a_mask_that_is_written_after_its_step():
    _, fast = pair("v32")
    ids, mask = padded(prompts(3, 20), [20, 13, 5])
    wanted = steps(fast, ids, mask, transformers.DynamicCache(config=fast.config), 1)
    past = transformers.DynamicCache(config=fast.config)
    written = mask.bool()
    with torch.no_grad():
        fast(ids, attention_mask=written, past_key_values=past)
        written.fill_(True)
        longer = torch.nn.functional.pad(mask, (0, 1), value=1)
        got = fast(ids[:, :1], attention_mask=longer, past_key_values=past).logits[:, -1]
    assert torch.equal(got, wanted[1])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda mask: None, "got none, wanted a mask with the padding of earlier steps"),
        (lambda mask: 1 - mask, "got other padding than in earlier steps"),
        (lambda mask: torch.ones_like(mask), "got none, wanted a mask with the padding of earlier steps"),
        (
            lambda mask: mask[:, 1:],
            r"got \[3, 20\], wanted 3 sequences of 21 columns, including the cached columns",
        ),
        (lambda mask: mask[:2], r"got \[2, 21\], wanted 3 sequences of 21 columns"),
    ],
    ids=["none", "other", "all", "short", "few"],
)
def test_masks_that_are_refused(change, match):
    _, fast = pair("v32")
    ids, mask = padded(prompts(3, 20), [20, 13, 5])
    past = transformers.DynamicCache(config=fast.config)
    with torch.no_grad():
        fast(ids, attention_mask=mask, past_key_values=past)
        longer = torch.nn.functional.pad(mask, (0, 1), value=1)
        positions = {"position_ids": torch.full((3, 1), 20)}
        with pytest.raises(smla.Error, match=match):
            fast(ids[:, :1], attention_mask=change(longer), past_key_values=past, **positions)
        fast(ids[:, :1], attention_mask=longer, past_key_values=past, **positions)


def test_another_number_of_sequences():
    _, fast = pair("v32")
    past = transformers.DynamicCache(config=fast.config)
    with torch.no_grad():
        fast(prompts(3, 20), past_key_values=past)
        with pytest.raises(smla.Error, match="past_key_values: got 3 sequences, wanted 2, as in the step"):
            fast(prompts(2, 1), past_key_values=past)
