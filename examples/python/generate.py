"""Runs generate() of transformers on smla, with a progress bar and tokens per second.

python examples/python/generate.py                                a tiny random model of DeepSeek-V3.2
python examples/python/generate.py --checkpoint FOLDER --prompt "Once upon a time"
"""

import argparse
import sys
import time

try:
    import smla.transformers
    import torch
    import transformers
except ImportError as error:
    print(error)
    sys.exit(77)


class Progress(transformers.generation.streamers.BaseStreamer):
    """A progress bar on a terminal."""

    def __init__(self, tokens):
        self.tokens, self.done, self.begin = tokens, -1, None  # the first call passes the prompt

    def put(self, value):
        self.done += 1
        if self.done == 1:
            self.begin = time.perf_counter()  # the prompt has been read
        if sys.stderr.isatty():
            full = 30 * max(self.done, 0) // self.tokens
            print(f"\r[{'#' * full:<30}] {self.done}/{self.tokens}", end="", file=sys.stderr)

    def end(self):
        if sys.stderr.isatty():
            print(file=sys.stderr)

    def rate(self):
        return (self.done - 1) / (time.perf_counter() - self.begin)


def tiny():
    torch.manual_seed(0)
    config = transformers.DeepseekV32Config(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=64,
        index_n_heads=8,
        index_topk=64,
        intermediate_size=128,
        first_k_dense_replace=2,
        vocab_size=512,
        pad_token_id=0,
        eos_token_id=None,
    )
    return transformers.DeepseekV32ForCausalLM(config).eval(), torch.randint(4, 500, (1, 200))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--checkpoint")
    parser.add_argument("--prompt", default="Sparse attention is")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--kv-format")
    options = parser.parse_args()
    if options.checkpoint:
        tokenizer = transformers.AutoTokenizer.from_pretrained(options.checkpoint)
        model = transformers.AutoModelForCausalLM.from_pretrained(options.checkpoint, dtype="auto")
        ids = tokenizer(options.prompt, return_tensors="pt").input_ids
    else:
        model, ids = tiny()
        wanted = model.generate(ids, max_new_tokens=options.tokens, do_sample=False)

    # [README.begin]
    smla.transformers.enable(model, kv_format=options.kv_format)
    progress = Progress(options.tokens)
    out = model.generate(ids, max_new_tokens=options.tokens, do_sample=False, streamer=progress)
    # [README.end]

    print(f"{out.shape[1] - ids.shape[1]} tokens, {progress.rate():.1f} per second")
    if options.checkpoint:
        print(tokenizer.decode(out[0], skip_special_tokens=True))
    elif options.kv_format is None:
        assert torch.equal(out, wanted), "the tokens differ from those of transformers without smla"
        print("the same tokens as without smla")


if __name__ == "__main__":
    main()
