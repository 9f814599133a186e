"""Generates with a tiny DeepSeek-V3.2 or GLM-5.3-Flash on vLLM and a GPU; scripts/vllm_check runs it.

    python3 tests/python/vllm_tiny.py --backend SMLA|auto|NAME --out FILE.json

Weights are random, but the same for every backend. FILE gets, of each workload, tokens, their
log-probabilities, by how much the best token led, and the times of the steps: ms of a whole step, of the
host in a layer's calls of the attention backend, and of those of all layers and the metadata's. A first
round, which compiles, is not counted. With --beside, several engines take turns in one process, round by
round: on a virtual machine the same code takes 2.5 times as long in one minute as in another, so only
neighbours can be compared.

On N GPUs: python3 -m torch.distributed.run --standalone --nproc-per-node N tests/python/vllm_tiny.py
--tensor-parallel N ...; the first rank writes FILE.
"""

import argparse
import dataclasses
import faulthandler
import json
import os
import sys
import tempfile
import time
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "attention_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "ep_size": 1,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 2048,
    "intermediate_size": 2048,
    "kv_lora_rank": 512,
    "max_position_embeddings": 16384,
    "moe_intermediate_size": 512,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 2,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "routed_scaling_factor": 1.0,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 4096,
}
GLM = {
    "architectures": ["Glm5NextForCausalLM"],
    "model_type": "glm5_next_text",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_size": 1024,
    "index_kpool": 16,
    "index_kpool_always_select_tail": True,
    "index_n_heads": 32,
    "index_topk": 2048,
    "intermediate_size": 2048,
    "kv_lora_rank": 512,
    "max_position_embeddings": 16384,
    "moe_intermediate_size": 512,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
    "q_lora_rank": 512,
    "qk_nope_head_dim": 256,
    "qk_rope_head_dim": 0,
    "torch_dtype": "bfloat16",
    "v_head_dim": 256,
    "vocab_size": 4096,
}
MODELS = {"V3.2": (MODEL, 64), "GLM-5.3-Flash": (GLM, 1024)}  # and tokens of a page: whole pages of pools
# Sizes with which attention and selection matter: the standard deviation times sqrt(columns), by name.
SIZES = {"lm_head": 4.0, "q_b_proj": 3.0}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--backend", default="SMLA", help="SMLA, auto (vLLM's choice), or a name of vLLM's")
    parser.add_argument("--model", choices=MODELS, default="V3.2")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument(
        "--beside",
        nargs="+",
        default=[],
        metavar="BACKEND,DTYPE",
        help="more engines, of these backends and caches",
    )
    parser.add_argument("--rounds", type=int, default=1, help="of each workload")
    parser.add_argument("--layers", type=int, default=1, help="with more, rounding decides what is selected")
    parser.add_argument("--heads", type=int, default=64)
    parser.add_argument("--topk", type=int, default=MODEL["index_topk"])
    parser.add_argument("--lengths", default="5,64,700,2049,3000,5000", help="of the prompts")
    parser.add_argument(
        "--requests",
        type=int,
        nargs="+",
        default=[],
        help="in place of lengths: so many of 64 to 4096 tokens",
    )
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--max-batched", type=int, default=4096, help="fewer: prompts come in chunks")
    parser.add_argument("--cache-gib", type=float, default=2.0)
    parser.add_argument("--graphs", action="store_true", help="decode steps in CUDA graphs")
    parser.add_argument(
        "--prefix-caching", action="store_true", help="the second run finds the prompts cached"
    )
    parser.add_argument("--preempt", action="store_true", help="pages for the prompts alone")
    parser.add_argument("--tensor-parallel", type=int, default=1, metavar="N")
    parser.add_argument("--decode-context-parallel", type=int, default=1, metavar="N")
    parser.add_argument("--mtp", action="store_true", help="speculative decoding of one token")
    parser.add_argument(
        "--limit", type=float, default=600, metavar="SECONDS", help="then it says where it hangs, and ends"
    )
    return parser.parse_args()


def workloads(given):
    """Lengths of the prompts of each workload, all of which run on one engine."""
    import torch

    generator = torch.Generator().manual_seed(11)
    drawn = [torch.randint(64, 4097, (n,), generator=generator).tolist() for n in given.requests]
    return drawn or [[int(x) for x in given.lengths.split(",")]]


def model_folder(given, folder):
    """A folder with the model's config.json."""
    heads = {"num_attention_heads": given.heads, "num_key_value_heads": given.heads}
    layers = {"num_hidden_layers": given.layers, "first_k_dense_replace": given.layers}
    if given.model == "GLM-5.3-Flash":  # without its layers of linear attention, which are vLLM's alone
        layers = {"num_hidden_layers": given.layers, "mlp_layer_types": ["dense"] * given.layers}
        layers |= {
            "layer_types": ["indexed_attention"] * given.layers,
            "indexer_types": ["full"] * given.layers,
        }
    config = {
        **MODELS[given.model][0],
        **heads,
        **layers,
        "index_topk": given.topk,
        "num_nextn_predict_layers": int(given.mtp),
    }
    Path(folder, "config.json").write_text(json.dumps(config))
    return folder


def fill(model):
    """The same random weights for every backend and number of ranks: by name."""
    import torch

    for prefix, module in model.named_modules():
        for last, parameter in module.named_parameters(recurse=False):
            if not parameter.is_floating_point():
                continue
            name = f"{prefix}.{last}"
            shape, part_of = whole(module, parameter.shape)
            values = torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
            if name.endswith("bias"):
                values *= 0
            elif "norm" in name or parameter.ndim == 1:
                values = 1 + 0.1 * values
            elif "embed" not in name:
                values *= (
                    next((x for part, x in SIZES.items() if part in name), 1.0) / values.shape[-1] ** 0.5
                )
            with torch.no_grad():
                parameter.copy_(part_of(values).to(parameter.dtype))


def whole(module, shape):
    """The shape of a module's parameter over all tensor-parallel ranks, and which part is this rank's."""
    import torch
    from vllm.distributed import get_tensor_model_parallel_rank
    from vllm.model_executor.layers.linear import ColumnParallelLinear, RowParallelLinear
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    ranks, rank = getattr(module, "tp_size", 1), get_tensor_model_parallel_rank()
    if ranks == 1 or not isinstance(
        module, (ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding)
    ):
        return shape, lambda values: values
    dim = 1 if isinstance(module, RowParallelLinear) else 0
    # matrices in one, each of which is divided
    sizes = module.output_partition_sizes if isinstance(module, ColumnParallelLinear) else [shape[dim]]

    def part_of(values):
        parts = values.split([size * ranks for size in sizes], dim)
        return torch.cat([part.chunk(ranks, dim)[rank] for part in parts], dim)

    return (*shape[:dim], shape[dim] * ranks, *shape[dim + 1 :]), part_of


def find_platform():
    """Where NVML cannot be asked, vLLM would find no platform: names the one that asks CUDA alone."""
    import vllm.platforms as platforms

    try:
        found = platforms.builtin_platform_plugins["cuda"]() is not None
    except Exception:  # NVML is there and fails
        found = False
    if not found:
        platforms.builtin_platform_plugins["cuda"] = lambda: "vllm.platforms.cuda.NonNvmlCudaPlatform"


def own_name():
    """smla's name among vLLM's backends, registered by hand where smla is not installed."""
    from vllm.plugins import load_general_plugins

    sys.path.append(str(ROOT / "python"))
    import smla.vllm

    load_general_plugins()
    if not smla.vllm.register():
        sys.exit("vllm_tiny: smla is not registered")
    return smla.vllm.registered_name()


def fix_quant_mode():
    """vLLM 0.25 lays no cache of fp8_ds_mla out, with any backend (issue 48378): tells its spec."""
    from vllm.model_executor.layers.attention.mla_attention import MLAAttention
    from vllm.v1.kv_cache_interface import get_kv_quant_mode

    spec_of = MLAAttention.get_kv_cache_spec

    def with_mode(layer, config):
        return dataclasses.replace(
            spec_of(layer, config), kv_quant_mode=get_kv_quant_mode(layer.kv_cache_dtype)
        )

    MLAAttention.get_kv_cache_spec = with_mode


def options(given, requests):
    """Returns the options of the engine that not every run has."""
    more = {} if given.backend == "auto" else {"attention_backend": given.backend}
    if given.graphs:
        sizes = [x for x in (1, 2, 4, 8, 16, 32, 64) if x < 2 * requests]
        more["compilation_config"] = {
            "mode": 0,
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": sizes,
        }
    if given.tensor_parallel > 1:
        more["tensor_parallel_size"] = given.tensor_parallel
        more["decode_context_parallel_size"] = given.decode_context_parallel
        more["distributed_executor_backend"] = "external_launcher"
        more["disable_custom_all_reduce"] = True  # NCCL's, whatever joins the GPUs
    if given.mtp:
        more["speculative_config"] = {"method": "mtp", "num_speculative_tokens": 1}
    if given.preempt:  # one page is vLLM's own
        more["num_gpu_blocks_override"] = 1 + sum(
            -(-n // MODELS[given.model][1]) for n in workloads(given)[0]
        )
    return more


def engine(given, folder):
    import vllm
    from vllm.model_executor.model_loader import dummy_loader

    dummy_loader.DummyModelLoader.load_weights = lambda self, model, model_config: fill(model)
    if given.kv_cache_dtype.startswith("fp8") and vllm.__version__.startswith("0.25."):
        fix_quant_mode()
    requests = max(map(len, workloads(given)))
    return vllm.LLM(
        model=model_folder(given, folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        seed=0,
        enforce_eager=not given.graphs,
        block_size=MODELS[given.model][1],
        kv_cache_dtype=given.kv_cache_dtype,
        max_model_len=given.max_model_len,
        max_num_seqs=max(16, requests),
        max_num_batched_tokens=given.max_batched,
        gpu_memory_utilization=0.1,  # of an H200; several engines share it
        kv_cache_memory_bytes=int(given.cache_gib * 2**30),
        enable_prefix_caching=given.prefix_caching,
        disable_log_stats=True,
        async_scheduling=False,
        **options(given, requests),
    )


def core_of(llm):
    return llm.llm_engine.engine_core.engine_core


class Meter:
    """Times and counts of an engine's steps, while a workload runs."""

    def __init__(self, core, runner):
        self.clear()
        self._wrap(runner, "execute_model", self._step)
        layers = runner.compilation_config.static_forward_context
        names = {name for name, x in layers.items() if getattr(x, "impl", None) is not None}
        self.impls = [layers[name].impl for name in names]
        for impl in self.impls:
            for name in ("forward_mqa", "do_kv_cache_update"):
                if hasattr(impl, name):
                    self._wrap(impl, name, self._host)
        for group in [each for groups in getattr(runner, "attn_groups", []) for each in groups]:
            if names.intersection(group.layer_names):
                for builder in group.metadata_builders:
                    self._wrap(builder, "build", self._build)
        if hasattr(core.scheduler, "_preempt_request"):
            self._wrap(core.scheduler, "_preempt_request", self._preempt)

    def clear(self):
        self.steps, self.preemptions, self.host, self.built = [], 0, 0.0, 0.0

    @staticmethod
    def _wrap(holder, name, around):
        inner = getattr(holder, name)
        setattr(holder, name, lambda *args, **named: around(inner, *args, **named))

    def _step(self, inner, scheduled, *args, **named):
        import torch

        torch.cuda.synchronize()
        self.host = self.built = 0.0
        begun = time.perf_counter()
        result = inner(scheduled, *args, **named)
        torch.cuda.synchronize()
        step = {
            "tokens": scheduled.total_num_scheduled_tokens,
            "requests": len(scheduled.num_scheduled_tokens),
        }
        step["ms"] = (time.perf_counter() - begun) * 1e3
        step["host_ms_layer"] = self.host * 1e3 / len(self.impls)
        step["host_ms_step"] = (self.host + self.built) * 1e3
        self.steps.append(step)
        return result

    def _host(self, inner, *args, **named):
        begun = time.perf_counter()
        result = inner(*args, **named)
        self.host += time.perf_counter() - begun
        return result

    def _build(self, inner, *args, **named):
        begun = time.perf_counter()
        result = inner(*args, **named)
        self.built += time.perf_counter() - begun
        return result

    def _preempt(self, inner, *args, **named):
        self.preemptions += 1
        return inner(*args, **named)


def outputs_of(done):
    for request in done:
        output = request.outputs[0]
        ranked = [sorted((x.logprob for x in at.values()), reverse=True) for at in output.logprobs]
        yield {
            "prompt": len(request.prompt_token_ids),
            "cached": request.num_cached_tokens or 0,
            "tokens": list(output.token_ids),
            "logprobs": [at[t].logprob for at, t in zip(output.logprobs, output.token_ids, strict=True)],
            "margins": [x[0] - x[1] if len(x) > 1 else 0.0 for x in ranked],
        }


def engines_of(given):
    """The arguments of each engine."""
    for text in [f"{given.backend},{given.kv_cache_dtype}", *given.beside]:
        backend, dtype = text.split(",")
        yield argparse.Namespace(**{**vars(given), "backend": backend, "kv_cache_dtype": dtype})


class Engine:
    """An engine, its meter, and what came of its workloads."""

    def __init__(self, given):
        self.name, self.dtype, self.ran = given.backend, given.kv_cache_dtype, []
        if given.backend == "SMLA":
            given.backend = own_name()
        with tempfile.TemporaryDirectory() as folder:
            self.llm = engine(given, folder)
        core = core_of(self.llm)
        self.meter = Meter(core, core.model_executor.driver_worker.worker.model_runner)

    def run(self, prompts, params, number):
        """Round `number` of a workload; what happens in round 0 is not counted."""
        if number <= 1:
            self.meter.clear()
        done = self.llm.generate(prompts, params, use_tqdm=False)
        if number == 0:
            return
        steps, preemptions = self.meter.steps, self.meter.preemptions
        workload = {"steps": steps, "preemptions": preemptions, "outputs": list(outputs_of(done))}
        self.ran[len(self.ran) - (number > 1) :] = [workload]

    def result(self):
        impl = sorted({type(x).__qualname__ for x in self.meter.impls})
        return {"backend": self.name, "kv_cache_dtype": self.dtype, "impl": impl, "workloads": self.ran}


def share_workspace():
    """vLLM's engines of one process share a workspace, which may not grow after the last one's warm-up."""
    from vllm.v1.worker.workspace import unlock_workspace

    unlock_workspace()


def main():
    given = arguments()
    faulthandler.dump_traceback_later(given.limit, exit=True)
    defaults = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # all in this process
        "VLLM_DEEP_GEMM_WARMUP": "skip",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    if not any(each.backend == "SMLA" for each in engines_of(given)):
        os.environ["VLLM_PLUGINS"] = ""  # vLLM as it is
    import torch

    find_platform()
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=0.0, max_tokens=given.tokens, ignore_eos=True, logprobs=2, detokenize=False
    )
    engines = [Engine(each) for each in engines_of(given)]
    if len(engines) > 1:
        share_workspace()
    for lengths in workloads(given):
        generator = torch.Generator().manual_seed(7)
        ids = [torch.randint(2, MODEL["vocab_size"], (n,), generator=generator).tolist() for n in lengths]
        prompts = [{"prompt_token_ids": x} for x in ids]
        for number in range(given.rounds + 1):  # the first one compiles
            for each in engines:
                each.run(prompts, params, number)
    if int(os.environ.get("RANK", "0")) == 0:
        first, *beside = [each.result() for each in engines]
        given.out.write_text(json.dumps({**first, "beside": beside}))
    if given.tensor_parallel > 1:
        torch.distributed.barrier()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # NCCL's communicators of captured graphs can hang where Python takes them down


if __name__ == "__main__":
    main()
