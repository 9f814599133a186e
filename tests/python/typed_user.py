"""A program of a user, on which test_types.py runs type checkers. It is never executed.

A line that ends with "# wrong" has a mistake that they must find. They must report nothing else.
"""

import copy
from pathlib import Path

import numpy as np
import smla
import smla.torch
import torch
import transformers
from smla import rows
from smla.compat import deep_gemm, flash_mla, flashinfer, vllm_ops

context = smla.Context("cpu", isa="auto", threads=2, batch_invariant=True)
description: str = context.description
workspace: smla.Workspace = context.workspace(budget=1 << 20)
workspace.reserve(4096)
smla.set_default_context(smla.default_context("cpu"))
smla.Context("gpu")  # wrong
smla.Context("cpu", thread=2)  # wrong
smla.Context("cpu", device="cuda:0")  # wrong

cache = smla.Cache.empty("row_f32", 8, 64, width=576, context=context)
other = smla.Cache(cache.array, **cache.layout)
held: int = other.capacity + copy.deepcopy(cache).bytes
cache.grow(16)
smla.Cache.empty("fp8_656", "8", 64)  # wrong
smla.Cache("fp8_656", cache, 64)  # wrong

q = np.zeros((3, 16, 576), dtype=np.float32)
listed = np.zeros((3, 128), dtype=np.int32)
attended = smla.attend(q, cache, listed, softmax_scale=0.07, precision="rounded", lse=True, context=context)
total: float = attended.out.sum() + attended.lse.max()
smla.merge(np.stack([attended.out, attended.out]), attended.lse, lse_base="ln")
smla.attend(q, cache, listed, softmax_scale=np.ones(1, np.float32), workspace=workspace, stream=None)
smla.attend(torch.zeros(3, 16, 576), cache, torch.zeros(3, 8, dtype=torch.int32), softmax_scale=1)
smla.attend(smla.tensor(q.view(np.int32), "f32"), cache, listed, softmax_scale=0.07)
smla.attend(q, cache, listed, softmax_scale="x")  # wrong
smla.attend(q, cache, listed)  # wrong
smla.attend(q, cache, listed, softmax_scale=0.07, precision="fast")  # wrong
smla.attend(q, listed, cache, softmax_scale=0.07)  # wrong
smla.attend(q, cache, listed, softmax_scale=0.07, lenghts=None)  # wrong
print(smla.attend(q, cache, listed, softmax_scale=0.07).output)  # wrong

scores = np.zeros((3, 100), dtype=np.float32)
ends = np.full(3, 100, dtype=np.int32)
selection: smla.Selection = smla.select(scores, 8, ends=ends)
print(selection.indices.shape, selection.counts)
keys = smla.Cache.empty("row_f32", 2, 64, width=128)
query = smla.quant_index_q(np.zeros((3, 64, 128), np.float32), np.zeros((3, 64), np.float32), factor=0.01)
logits = smla.score(query.q, query.w, keys, ends, precision="exact")
print(logits.shape, smla.score_select(query.q, query.w, keys, ends, 8).indices)
print(smla.score_select_blocks(query.q, query.w, keys, ends, 8, block_size=16, keep=2).best_blocks)
smla.select(scores, "8")  # wrong

x = smla.norm(q, eps=1e-6, kind="rms")
x = smla.rope(x, np.arange(3), np.ones(32), style="half")
x = smla.inverse_rope(x, np.arange(3), np.ones(32), out=x)
x = smla.project(x, np.zeros((16, 8, 576), np.float32), out_dtype="bf16")
x = smla.out_project(smla.up_project(smla.absorb(x, x), x), x)
slots = np.zeros(3, dtype=np.int64)
smla.write_kv(x, slots, cache, norm_kind="layer", rope_style="interleaved")
smla.write_index(x, slots, keys, hadamard=True)
state = smla.Cache.empty("state_f32", 2, 4, width=1024)
smla.save_state(x, x, None, slots, slots, state)
smla.compress(state, listed, ends, slots, slots, None, np.ones(32), cache, ratio=4)
smla.copy_pages(cache, cache, np.zeros((1, 2), np.int32))
smla.gather(cache, listed, ends, x)
smla.map(listed, ends, listed, page_tokens=64)
smla.norm(q, eps=1e-6, kind="rsm")  # wrong
smla.write_kv(x, slots, listed)  # wrong

explained = smla.explain_call(smla.attend, q, cache, listed, softmax_scale=0.07)["candidates"]
smla.check_call(smla.attend, q, cache, listed, softmax_scale=0.07)
smla.prepare_call(smla.attend, q, cache, listed, softmax_scale=0.07)

found: rows.Rows = rows.request_rows(listed, ends, listed, page_tokens=64)
context_rows, new_rows = rows.split_context(found.rows, found.lens)
rows.prefill_chunks(ends, ends, ratio=4).tolist()
rows.request_rows(listed, ends, listed)  # wrong

plan = smla.Plan(["primary", "index"], max_tokens=4, max_requests=2, max_seq_len=128, context=context)
group = smla.PlanGroup(listed, page_tokens=64)
plan.build(ends, ends, tokens=3, primary=group, index=None)
names: list[str] = plan.fields
print(plan.field("primary_slot"), group.page_rows)
plan.build(ends, ends, tokns=3)  # wrong
plan.build(ends, ends, primery=group)  # wrong
smla.Plan(["primary"], max_tokens=4, max_requests=2)  # wrong

layer = smla.Layer.from_pretrained(Path("x"), 0, weights="as_stored", context=context)
layer = smla.Layer.from_tensors({"model_type": "deepseek_v32"}, {"w": torch.zeros(1)}, 0, queries="bf16")
hidden = layer.forward(x, plan, caches={"primary": (cache, listed)}, workspace=workspace)
session = layer.session(max_tokens=4096, kv_format="fp8_656")
hidden = session.forward(hidden, [(0, 3)], rope_positions=slots)
twin: smla.Session = smla.Session(layer, entries_of=session).clone(max_requests=2)
session.truncate(session.length() - 1)
twin.reorder([0, 0])
twin.resize(max_tokens=8192)
print(layer.info["heads"], session.options, session.cache_bytes, session.topk)
layer.session(max_tokns=3)  # wrong
session.resize(page_tokens=3)  # wrong
session.forward(hidden, [0, 3])  # wrong
layer.forward(x, plan, caches={"primary": cache})  # wrong

backend = smla.Backend(
    None, "dsa", heads=16, max_tokens=4, max_requests=2, max_seq_len=128, softmax_scale=0.1, topk=64
)
metadata: smla.Metadata = backend.metadata()
metadata.build(ends, ends, decodes=2, primary=group)
out = backend.forward(metadata, q, kv_cache=cache, topk_indices=listed)
print(backend.info["name"], backend.cache_shape(4, "window")["shape"], smla.backends())
reasons: list[str] = smla.why_not("FLASHMLA_SPARSE", "dsa", heads=16, wants=["alibi"], dtype="bf16")
smla.select_backend("hybrid", wanted=None, heads=16, device="sm_90", precision="rounded")
smla.Backend("FLASHMLA_SPARSE", "dsa", headz=16)  # wrong
smla.Backend("FLASHMLA_SPARSE", "mla", heads=16)  # wrong
backend.forward(metadata, q, kv_cache=listed)  # wrong

scale: float = smla.layer_info("config.json", 3)["softmax_scale"]
print(smla.rope_frequencies(Path("config.json")).shape, smla.doctor()["passed"], smla.program())
print(smla.bench(case="attend", quick=True)["results"], smla.capacity("config.json", context=4096))
report = smla.report("r.html", quick=True, model={"model_type": "deepseek_v32"})
saved: Path = report.save("again.html")
bits = smla.Writer.SCALE_FLOOR | smla.Writer.TIES_TO_ZERO
smla.report(quik=True)  # wrong

try:
    smla.torch.attend(q, cache, listed, softmax_scale=0.07)
except smla.InvalidArgument as error:
    print(error.field, error.got, error.wanted, error.status)
except (smla.Unsupported, smla.Error):
    raise


def with_torch(queries: torch.Tensor, pool: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Uses operators for PyTorch and drop-in modules of other libraries."""
    over = smla.Cache(pool, "fp8_656", 64)
    first = smla.torch.attend(queries, over, indices, softmax_scale=0.07, out_dtype=torch.bfloat16).out
    flash_mla.flash_mla_sparse_fwd(queries, pool, indices, 0.07)
    flash_mla.flash_mla_sparse_fwd(queries, pool, indices, scale=0.07)  # wrong
    deep_gemm.fp8_mqa_logits(queries, (pool, pool), queries, indices, indices)
    values, places = flashinfer.top_k(queries, 8)
    vllm_ops.concat_and_cache_mla(queries, queries, pool, indices, "fp8_ds_mla", pool)
    smla.torch.norm(queries, eps="small")  # wrong
    return torch.cat([values, places, torch.as_tensor(first)])


def with_transformers(folder: str) -> str:
    """Uses a model of transformers."""
    import smla.transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    smla.transformers.enable(model, kv_format="fp8_656", queries="bf16", threads=4)
    refusals: list[str] = smla.transformers.why_not(model)
    past = smla.transformers.Cache(model.config, max_tokens=4096, static=True)
    smla.transformers.enable(model, queries="fp8")  # wrong
    smla.transformers.enable(model, kv_fromat="fp8_656")  # wrong
    smla.transformers.disable(model)
    return f"{refusals} {past.bytes}"
