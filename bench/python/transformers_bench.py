"""One attention layer of DeepSeek-V3.2 in transformers: on smla, and with transformers' own attention.

    python bench/python/transformers_bench.py                                   CPU: 1K and 16K tokens
    python bench/python/transformers_bench.py --device cuda --context 1024 65536
    python bench/python/transformers_bench.py --floors                          exit code 1 below the floors

The layer has the published sizes (hidden 7168, 128 heads, 64 index heads, 2048 selected tokens), random
weights and a small MLP behind it. Each implementation runs in a process of its own, on the same weights and
inputs.

prefill: the last --chunk tokens of the context in one call (the whole of a context of two chunks at most);
where memory does not suffice for that, in halves, quarters and so on ("parts").
decode: one token at the end of the context.
peak: memory above that of the loaded model, caches included.
error: how much smla's output of the shortest context differs from transformers'.

Times are medians: of one thread its processor time, which other load does not change, else wall time. What
comes before the prefill: transformers' cache is filled with random values, smla's by running those tokens.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

try:
    import smla.transformers
    import torch
    import transformers
except ImportError as missing:
    print(missing)
    sys.exit(77)

# At the longest context on a CPU, and at the shortest: smla by the other. On a GPU only decoding has one.
FLOORS = {"cpu": {"decode": 30, "prefill": 6, "peak": 20, "shortest": 1}, "cuda": {"decode": 5}}
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
MIB = 1 << 20


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--context", type=int, nargs="+", default=[1024, 16384])
    parser.add_argument("--chunk", type=int, default=512, help="tokens of a prefill")
    parser.add_argument("--steps", type=int, default=5, help="decode steps, after one that warms up")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--heads", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--against", choices=("sdpa", "eager"), default="sdpa")
    parser.add_argument("--kv-format", help="of smla's cache: fp8_656; default: rows of --dtype")
    parser.add_argument("--threads", type=int, default=1, help="on a CPU; 0: PyTorch's choice")
    parser.add_argument("--floors", action="store_true", help="exit code 1 where a floor is missed")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--run", help=argparse.SUPPRESS)  # this process measures one implementation
    parser.add_argument("--outputs", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.context.sort()
    if min(options.chunk, options.context[0], options.steps, options.threads + 1) < 1:
        parser.error("--chunk, --context, --steps: wanted 1 or more; --threads: 0 or more")
    return options


class Memory:
    """Bytes in use on a device, and their peak within a with-block."""

    def __init__(self, device):
        self.cuda, self.peak = device == "cuda", 0

    def now(self):
        if self.cuda:
            free, total = torch.cuda.mem_get_info()
            return total - free
        return self._of_process("VmRSS")

    @staticmethod
    def _of_process(name):
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(name))

    def __enter__(self):
        gc.collect()
        if self.cuda:  # whoever allocates: PyTorch, smla or a library
            torch.cuda.empty_cache()
            self.peak, self.done = self.now(), threading.Event()
            self.thread = threading.Thread(target=self._watch)
            self.thread.start()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
        return self

    def _watch(self):
        while not self.done.wait(0.0005):
            self.peak = max(self.peak, self.now())

    def __exit__(self, *error):
        if self.cuda:
            torch.cuda.synchronize()
            self.done.set()
            self.thread.join()
            self.peak = max(self.peak, self.now())
        else:
            self.peak = self._of_process("VmHWM")


class Side:
    """The layer with one implementation of attention."""

    def __init__(self, options):
        self.options, self.name, self.device = options, options.run, options.device
        if options.threads:
            torch.set_num_threads(options.threads)
        alone = self.device == "cpu" and torch.get_num_threads() == 1
        self.clock = time.process_time if alone else time.perf_counter
        torch.set_default_dtype(DTYPES[options.dtype])
        torch.manual_seed(0)
        config = transformers.DeepseekV32Config(
            hidden_size=options.hidden, num_hidden_layers=1, num_attention_heads=options.heads,
            num_key_value_heads=options.heads, q_lora_rank=1536, index_n_heads=64, index_topk=2048,
            first_k_dense_replace=1, intermediate_size=64, vocab_size=8, pad_token_id=0,
            max_position_embeddings=max(options.context) + 4096,
        )  # fmt: skip
        with torch.device(self.device):
            self.model = transformers.DeepseekV32Model._from_config(config, attn_implementation="sdpa").eval()
            block = torch.randn(1, 1024, options.hidden)
        self.inputs = block  # the tokens of a context repeat it
        if self.name == "smla":
            smla.transformers.enable(self.model, kv_format=options.kv_format)
        else:
            self.model.set_attn_implementation(self.name)
        self.parts = 1
        self.warm = transformers.DynamicCache(config=config)
        self.run(self.warm, 64)

    def cache(self):
        return transformers.DynamicCache(config=self.model.config)

    def run(self, past, tokens):
        """The next tokens of a cache -> [tokens,X]."""
        first = int(past.get_seq_length())
        rows = torch.arange(first, first + tokens, device=self.device) % self.inputs.shape[1]
        return self.model(inputs_embeds=self.inputs[:, rows], past_key_values=past).last_hidden_state[0]

    def prefill(self, past, tokens):
        """The next tokens, in as many parts as memory asks for -> [tokens,X]."""
        before = int(past.get_seq_length())
        while True:
            try:
                width = -(-tokens // self.parts)
                return torch.cat(
                    [self.run(past, min(width, tokens - begin)) for begin in range(0, tokens, width)]
                )
            except torch.OutOfMemoryError:
                if self.name == "smla" or width == 1:
                    raise
            self.parts *= 2
            gc.collect()
            torch.cuda.empty_cache()
            self.back(past, before)

    def back(self, past, tokens):
        """Forgets all but the first tokens, also those of a step that failed half-way."""
        if self.name == "smla":
            if (more := past.get_seq_length() - tokens) > 0:
                past.crop(-more)
            return
        held = past.layers[0]
        held.keys, held.values = held.keys[:, :, :tokens], held.values[:, :, :tokens]
        held.indexer_keys = held.indexer_keys[:, :tokens]

    def filled(self, tokens):
        """A cache of so many tokens, and the seconds that smla took for them."""
        past, begin = self.cache(), self.clock()
        if self.name == "smla":
            while (held := past.get_seq_length()) < tokens:
                self.run(past, min(tokens - held, 8192))
            self.wait()
            return past, self.clock() - begin
        if tokens:
            held = self.warm.layers[0]

            def grown(values, axis):
                shape = list(values.shape)
                shape[axis] = 64
                repeats = [1] * len(shape)
                repeats[axis] = -(-tokens // 64)
                drawn = torch.randn(shape, dtype=values.dtype, device=values.device)
                return drawn.repeat(repeats).narrow(axis, 0, tokens)

            past.update(grown(held.keys, 2), grown(held.values, 2), 0)
            past.update_indexer(grown(held.indexer_keys, 1), 0)
        return past, None

    def cache_bytes(self, past):
        held = past.layers[0]
        if self.name == "smla":
            return held.bytes
        return sum(each.numel() * each.element_size() for each in (held.keys, held.values, held.indexer_keys))

    def wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def timed(self, call, *arguments):
        self.wait()
        begin = self.clock()
        call(*arguments)
        self.wait()
        return (self.clock() - begin) * 1e3

    def measure(self, context, base):
        """Times and memory at one context. On a CPU a long one is timed once: a chunk takes many seconds."""
        chunk = context if context <= 2 * self.options.chunk else self.options.chunk
        start = context - chunk
        past, seconds = self.filled(start)
        with Memory(self.device) as memory:
            prefills = [self.timed(self.prefill, past, chunk)]
            self.run(past, 1)
        if context <= 4096 or self.device == "cuda":
            prefills = []
            for _ in range(5):
                self.back(past, start)
                prefills.append(self.timed(self.prefill, past, chunk))
            self.run(past, 1)
        steps = [self.timed(self.run, past, 1) for _ in range(self.options.steps)]
        return {
            "prefill_ms": statistics.median(prefills),
            "decode_ms": statistics.median(steps),
            "peak_mib": (memory.peak - base) / MIB,
            "cache_mib": self.cache_bytes(past) / MIB,
            "chunk": chunk,
            "parts": self.parts,
            "fill_s": seconds,
        }


@torch.no_grad()
def one_side(options):
    """Measures options.run; the outputs of the shortest context go to a file. Prints JSON."""
    side = Side(options)
    gc.collect()
    if options.device == "cuda":
        torch.cuda.empty_cache()
    base = Memory(options.device).now()
    found = {str(context): side.measure(context, base) for context in options.context}
    past = side.cache()
    torch.save(side.prefill(past, options.context[0]).float().cpu(), options.outputs)
    print(json.dumps(found))


def machine(options):
    if options.device == "cuda":
        return torch.cuda.get_device_name()
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    threads = options.threads or torch.get_num_threads()
    processor = names[0].split(":")[1].strip() if names else "CPU"
    return f"{processor}, {threads} thread{'s' if threads > 1 else ''}"


def both_sides(options):
    """The document of a run."""
    with tempfile.TemporaryDirectory() as folder:
        found, outputs = {}, {}
        for name in ("smla", options.against):
            path = Path(folder) / name
            command = [sys.executable, *sys.argv, "--run", name, "--outputs", path]
            done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)
            if done.returncode:
                sys.exit(done.returncode)
            found[name], outputs[name] = json.loads(done.stdout.splitlines()[-1]), torch.load(path)
    ours, theirs = outputs["smla"], outputs[options.against]
    rows = []
    for context in map(str, options.context):
        smla_row, other = found["smla"][context], found[options.against][context]
        keys = {"prefill": "prefill_ms", "decode": "decode_ms", "peak": "peak_mib", "cache": "cache_mib"}
        ratios = {name: other[key] / max(smla_row[key], 1e-9) for name, key in keys.items()}
        rows.append({"context": int(context), "smla": smla_row, options.against: other, "ratios": ratios})
    return {
        "machine": machine(options),
        "versions": {each.__name__: each.__version__ for each in (smla, torch, transformers)},
        "load": os.getloadavg()[0],
        "against": options.against,
        "layer": {
            name: getattr(options, name) for name in ("hidden", "heads", "dtype", "chunk", "kv_format")
        },
        "error": float((ours - theirs).norm() / theirs.norm()),
        "rows": rows,
    }


def below(name, row, floor):
    return f"{name} at {row['context']}: got {row['ratios'][name]:.2f}, wanted {floor}"


def missed(document, device):
    """Floors that the run is below, in words."""
    floors, rows = FLOORS[device], document["rows"]
    for name in ("decode", "prefill", "peak"):
        if name in floors and rows[-1]["ratios"][name] < floors[name]:
            yield below(name, rows[-1], floors[name])
    for name in ("decode", "prefill"):
        if rows[0]["ratios"][name] < floors.get("shortest", 0):
            yield below(name, rows[0], floors["shortest"])


def table(document):
    other = document["against"]
    lines = [("context", "", "smla", other, "ratio")]
    shown = (
        ("prefill", "prefill_ms", "ms"),
        ("decode", "decode_ms", "ms"),
        ("peak", "peak_mib", "MiB"),
        ("cache", "cache_mib", "MiB"),
    )
    for row in document["rows"]:
        for name, key, unit in shown:
            cells = [f"{row[side][key]:.4g} {unit}" for side in ("smla", other)]
            if name == "prefill" and row[other]["parts"] > 1:
                cells[1] += f" in {row[other]['parts']} parts"
            lines.append((f"{row['context']}", name, *cells, f"{row['ratios'][name]:.3g}"))
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in lines)


def main():
    options = parsed()
    if options.run:
        return one_side(options)
    document = both_sides(options)
    short = list(missed(document, options.device))
    if options.json:
        print(json.dumps({**document, "missed": short}, indent=1))
    else:
        layer = " ".join(f"{name} {value}" for name, value in document["layer"].items() if value is not None)
        versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
        print(f"{document['machine']}; load {document['load']:.1f}; {versions}\n{layer}")
        print(table(document))
        print(f"error {document['error']:.1e}")
        for line in short:
            print(f"floor missed: {line}")
    return 1 if options.floors and short else 0


if __name__ == "__main__":
    sys.exit(main())
