"""Backends of DeepSeek-V4.1 over the golden layers: entries of a source layer by the list of another one."""

import numpy as np
import pytest
import smla
from backend_world import SHARED
from golden_files import Golden, worst

PAGE, TOKENS = 8, 20  # tokens of a page, of a step


def pool(random, rows, width):
    """An f32 cache of shuffled pages for `rows` rows, NaN at first, and the table of its one request."""
    columns = rows // PAGE + 1
    memory = np.full((columns, PAGE, width), np.nan, np.float32)
    table = random.permutation(columns).astype(np.int32)[None]
    return smla.Cache(memory, "row_f32", PAGE, pages=columns, width=width), table


def rows_of(table, numbers):
    return table[0, numbers // PAGE].astype(np.int64) * PAGE + numbers % PAGE


def source_suffix(golden, index):
    return next(each["suffix"] for each in golden.layers if each["layer_idx"] == index)


def selection(golden, layer, position, random):
    """What the layer attends to: its own scores within the candidate blocks, if it has them."""
    suffix, source = layer["suffix"], source_suffix(golden, layer["kv_source"])
    listed = golden.rows("mid.topk" + suffix)[position]
    if not layer["uses_candidates"]:
        return listed
    keys = golden.rows("mid.entries_index" + source)
    cache, table = pool(random, len(keys), keys.shape[1])
    smla.write_index(keys, rows_of(table, np.arange(len(keys))), cache)
    config = golden.config()
    named = "mid.candidates" + source_suffix(golden, config["candidate_source_layer_id"])
    candidates = golden.rows(named)[position]
    out = smla.score_select_blocks(
        golden.rows("mid.index_q" + suffix)[position],
        golden.rows("mid.index_w" + suffix)[position],
        cache,
        golden.rows("mid.visible" + suffix)[position],
        config["index_topk"],
        block_size=config["candidate_block_size"],
        blocks=candidates,
        block_table=table,
        request_of_token=np.zeros(len(position), np.int32),
    ).indices
    assert np.array_equal(np.sort(out), np.sort(listed))
    allowed = np.where(out < 0, True, (out[..., None] // 4 == candidates[:, None]).any(-1))
    assert config["candidate_block_size"] == 4 and allowed.all()
    return out


def attention(name, golden, layer):
    """The layer's attention over caches that are filled step by step, in steps of prefill and one decode."""
    random, suffix, ratio = np.random.default_rng(3), layer["suffix"], layer["compress_ratio"]
    q, kv = golden.rows("mid.q_rot" + suffix), golden.rows("mid.kv_window" + suffix)
    tokens, heads, width = q.shape
    config = golden.config()
    backend = smla.Backend(
        name,
        "hybrid_shared",
        heads=heads,
        head_dim=width,
        rope_dim=config["qk_rope_head_dim"],
        window=config["sliding_window"],
        ratio=ratio,
        topk=config["index_topk"] if ratio else 0,
        softmax_scale=golden.meta["softmax_scale"],
        dtype="f32",
        kv_cache_dtype="row_f32",
        max_tokens=TOKENS,
        max_requests=1,
        max_seq_len=tokens,
    )
    metadata, groups, more = backend.metadata(), {}, {}
    window, table = pool(random, tokens, width)
    groups["window"] = smla.PlanGroup(table, None, PAGE)
    if ratio:
        entries = golden.rows("mid.entries" + source_suffix(golden, layer["kv_source"]))
        more["kv_cache"], entry_table = pool(random, len(entries), width)
        groups["compressed"] = smla.PlanGroup(entry_table, None, PAGE)
    more["sink"] = golden[f"w.{layer['prefix']}attn_sink"].astype(np.float32)
    outs, edges = [], [*range(0, tokens - 1, TOKENS), tokens - 1, tokens]
    for first, last in zip(edges, edges[1:]):
        position = np.arange(first, last)
        metadata.build(np.array([0, last - first], np.int32), np.array([last], np.int32), **groups)
        if ratio:  # the source layer's work
            closed = np.arange(first // ratio, last // ratio)
            smla.write_kv(entries[closed], rows_of(entry_table, closed), more["kv_cache"])
            more["topk_indices"] = selection(golden, layer, position, random)
        outs.append(backend.forward(metadata, q[position], k_c=kv[position], swa_cache=window, **more))
    return np.concatenate(outs)


CASES = [(case, i) for case in ("V41_r0", "V41_r1", "V41_r2", "V41_share") for i in range(5)]
CASES += [("V41_chain", i) for i in range(6)]
CASES = [(case, i) for case, i in CASES if i < len(Golden(case).layers)]


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("case,index", CASES)
def test_attention_of_the_golden_layers(case, index, name):
    golden = Golden(case)
    layer = golden.layers[index]
    wanted = golden.rows("mid.core_rotated" + layer["suffix"])
    assert worst(attention(name, golden, layer), wanted) < golden.tolerance["fp32_mid"]


def test_the_cases_are_all_kinds_of_layers():
    layers = [Golden(case).layers[i] for case, i in CASES]
    assert {layer["compress_ratio"] for layer in layers} == {0, 1, 2}
    assert any(layer["uses_candidates"] for layer in layers)
    assert any(layer["index_source"] not in (None, layer["kv_source"]) for layer in layers)
