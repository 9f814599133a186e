"""Threads that run one enabled model, each with a cache of its own, from its very first call on."""

import threading
import time

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch")
transformers = pytest.importorskip("transformers", minversion="5.16", reason="no transformers 5.16")

from smla import transformers as on_smla  # noqa: E402
from smla.transformers import _modules  # noqa: E402
from smla.transformers._columns import Once  # noqa: E402
from transformers_models import KINDS, padded, pair, prompts  # noqa: E402

THREADS = 4


def at_once(call):
    """[call(i)] of as many threads, which begin together."""
    barrier, results = threading.Barrier(THREADS), [None] * THREADS

    def run(index):
        torch.set_grad_enabled(False)  # counts for one thread
        barrier.wait()
        try:
            results[index] = call(index)
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_first_calls_at_the_same_time(kind, monkeypatch):
    """A layer and a context are made once: a cache that another thread's layer began is refused."""
    _, fast = pair(kind)
    monkeypatch.setattr(_modules, "_contexts", {})
    made = []

    def slowly(make):
        def call(*args, **kwargs):
            made.append(make)
            time.sleep(0.1)  # other threads run
            return make(*args, **kwargs)

        return call

    monkeypatch.setattr(_modules.Layer, "from_tensors", slowly(_modules.Layer.from_tensors))
    monkeypatch.setattr(_modules, "Context", slowly(_modules.Context))

    def generate(index):
        past = transformers.DynamicCache(config=fast.config)
        ids = prompts(1, 30, seed=index)
        return [fast(part, past_key_values=past).logits for part in (ids[:, :25], ids[:, 25:28], ids[:, 28:])]

    results = at_once(generate)
    assert len(made) == len(on_smla._attentions(fast)) + 1
    for index, logits in enumerate(results):
        assert isinstance(logits, list), logits
        assert all(torch.equal(got, wanted) for got, wanted in zip(logits, generate(index), strict=True))


@torch.no_grad()
def test_steps_of_padded_batches_at_the_same_time():
    """What layers of a step share is the thread's own."""
    _, fast = pair("v32")

    def logits(index):
        ids, mask = padded(prompts(2, 20, seed=index), [20, 3 + 2 * index])
        return fast(ids, attention_mask=mask).logits

    wanted = [logits(index) for index in range(THREADS)]
    for _ in range(5):
        got = at_once(logits)
        assert all(isinstance(each, torch.Tensor) for each in got), got
        assert all(torch.equal(*both) for both in zip(got, wanted, strict=True))


def test_what_is_made_once_for_a_step_is_made_for_a_thread():
    once = Once(lambda source: f"of {source.name}")

    class Source:
        """Like a tensor; another thread's step runs whenever its version is read."""

        def __init__(self, name, between=None):
            self.name, self.between = name, between

        def is_inference(self):
            return False

        @property
        def _version(self):
            if self.between:
                thread = threading.Thread(target=self.between)
                thread.start()
                thread.join()
            return 0

    other = Source("another")
    mine = Source("mine", lambda: once(other, "layer"))
    assert once(mine, "layer") == "of mine"
    assert once(mine, "next layer") == "of mine"
