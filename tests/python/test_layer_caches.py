"""Layer.forward over caches that the caller owns, against the golden files; and fp8 caches against NumPy."""

import functools

import numpy as np
import numpy_formats
import pytest
import smla
from golden_files import Golden, cases, l2, worst

# Bounds of `smla verify` on the same cache bytes, and on what e4m3 must leave (with a tenth more).
SAME_CACHE_F32, SAME_CACHE_BF16_L2, OVER_PREDICTION = 5e-5, 1e-2, 1.1


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """opened(name, **options) -> its Golden and its layers."""

    @functools.cache
    def folder(name):
        golden = Golden(name)
        return golden, golden.write_checkpoint(tmp_path_factory.mktemp(name))

    def make(name, **options):
        golden, at = folder(name)
        return golden, [
            smla.Layer.from_pretrained(at, each["layer_idx"], **options) for each in golden.layers
        ]

    return make


class Caches:
    """Caches of a layer in memory of poison, their pages in random order, and the plan of its steps."""

    def __init__(self, layer, random, requests, max_tokens, formats=(), step_tokens=64, source=None):
        """source: of the layer whose entries this one reads, if it is another one."""
        info, formats = layer.info, dict(formats)
        self.planned = info["plan_groups"]
        overlap = 2 if info["kind"] == "compressed_sparse" else 1
        widths = {"index": info["index_width"]}
        widths["state"] = 2 * overlap * info["kv_width"]
        widths["index_state"] = 2 * overlap * info["index_width"]
        self.caches, self.groups, self.memory, self.tables = {}, {}, {}, {}
        if source is not None:
            shared = ["compressed", "index"] if info["topk"] else ["compressed"]
            for mine in ("caches", "groups", "memory", "tables"):
                getattr(self, mine).update({name: getattr(source, mine)[name] for name in shared})
        for name in info["plan_groups"]:
            if name in self.caches:
                continue
            entries = name == "compressed" or (name == "index" and info["ratio"])
            width, page = widths.get(name, info["kv_width"]), int(random.choice([1, 3, 4, 7]))
            columns = -(-max_tokens // (info["ratio"] if entries else 1)) // page + 2
            format = formats.get(name, "state_f32" if "state" in name else "row_f32")
            gap = int(random.choice([0, 0, 2]))  # rows between pages that belong to nobody
            pages = requests * columns + 3
            memory = np.full((pages, numpy_formats.page_bytes(format, page, width)), 0xFF, np.uint8)
            own_width = width if "_f32" in format else 0
            self.caches[name] = smla.Cache(
                memory, format, page, pages=pages, width=own_width, page_rows=page + gap if gap else 0
            )
            order = random.permutation(pages)[: requests * columns].astype(np.int32)
            self.tables[name] = order.reshape(requests, columns)
            self.memory[name] = memory
            self.groups[name] = (page, page + gap if gap else 0)
        self.plan = smla.Plan(
            info["plan_groups"],
            max_tokens=step_tokens,
            max_requests=requests,
            max_seq_len=max_tokens,
            window=info["window"],
            ratio=info["ratio"],
            list_entries=info["kind"] == "heavily_compressed",
        )
        self.done = np.zeros(requests, np.int32)

    def begin(self, step, padding=0, rope_positions=None):
        """Builds the plan of a step [(request, tokens), ...]; returns the caches as forward wants them."""
        order, counts = [request for request, _ in step], [n for _, n in step]
        starts = np.cumsum([0, *counts]).astype(np.int32)
        self.done[order] += np.array(counts, np.int32)
        tables = {name: np.ascontiguousarray(table[order]) for name, table in self.tables.items()}
        groups = {
            name: smla.PlanGroup(tables[name], page_tokens=page, page_rows=rows)
            for name, (page, rows) in self.groups.items()
            if name in self.planned
        }
        tokens = int(starts[-1]) + padding
        self.plan.build(starts, self.done[order], tokens=tokens, rope_positions=rope_positions, **groups)
        return {name: (self.caches[name], tables[name]) for name in self.groups}

    def rows_of(self, name, request, count):
        """Memory of the rows of tokens (or entries) 0, 1, ... of a request: page, offset."""
        page = self.groups[name][0]
        at = np.arange(count)
        return self.tables[name][request, at // page], at % page


def run(golden, layers, chunks, seed, **options):
    """y and selection of each layer, in chunks, all sequences of the batch together, with padding tokens."""
    random = np.random.default_rng(seed)
    batch, tokens = golden.batch, golden.tokens
    positions = golden["in.position_ids"].ravel()
    results, done, selected, named_blocks = [], {}, {}, {}
    for entry, layer in zip(golden.layers, layers):
        info, own = layer.info, entry["layer_idx"]
        chosen = selected.get(info["selection_of"]) if info["selection_of"] != own else None
        blocks = named_blocks.get(info["candidates_of"]) if info["candidates_of"] != own else None
        names, selects = info["candidates_of"] == own, info["selection_of"] == own
        source, most = done.get(info["entries_of"]), batch * max(chunks) + 3
        caches = Caches(layer, random, batch, tokens, step_tokens=most, source=source)
        best = np.full((batch * tokens, info["candidate_blocks"]), -9, np.int32)
        topk = np.full((batch * tokens, layer.info["topk"] or 1), -9, np.int32)
        y, first = np.full((batch * tokens, layer.info["hidden_size"]), np.nan, np.float32), 0
        for n in chunks:
            at = (np.arange(batch)[:, None] * tokens + np.arange(first, first + n)).ravel()
            padding = int(random.integers(4))
            hidden = np.full((len(at) + padding, y.shape[1]), np.nan, np.float32)
            hidden[: len(at)] = golden.rows("in.hidden" + entry["suffix"])[at]
            named = caches.begin([(b, n) for b in range(batch)], padding, positions[at])
            picked = np.full((len(hidden), topk.shape[1]), -9, np.int32)
            listed = np.full((len(hidden), best.shape[1]), -9, np.int32)
            out = layer.forward(
                hidden,
                caches.plan,
                caches=named,
                topk=picked if selects else None,
                forced_topk=None if chosen is None else _padded(chosen[at], padding),
                candidates=None if blocks is None else _padded(blocks[at], padding),
                best_blocks=listed if names else None,
                max_columns=int(random.choice([0, first + n])),
                **options,
            )
            y[at], topk[at], best[at] = out[: len(at)], picked[: len(at)], listed[: len(at)]
            assert not selects or (picked[len(at) :] == -1).all()
            assert not out[len(at) :].any()  # padding attends to nothing
            first += n
        done[own], selected[own], named_blocks[own] = caches, topk, best
        results.append((y, topk, caches))
    return results


def _padded(rows, padding):
    return np.concatenate([rows, np.full((padding, rows.shape[1]), -1, np.int32)])


def chunks_of(tokens, random):
    out = []
    while sum(out) < tokens:
        out.append(min(int(random.choice([1, 2, 5, 17])), tokens - sum(out)))
    return out


@pytest.mark.parametrize("name", [name for name in cases() if Golden(name).tokens <= 60])
def test_steps_over_the_callers_caches(opened, name):
    golden, layers = opened(name)
    for seed in (0, 1):
        chunks = chunks_of(golden.tokens, np.random.default_rng(seed))
        for entry, layer, (y, topk, _) in zip(golden.layers, layers, run(golden, layers, chunks, seed)):
            assert worst(y, golden.wanted(entry["suffix"])) < golden.tolerance["fp32_y"]
            if layer.info["selection_of"] == entry["layer_idx"] and golden.has("mid.topk" + entry["suffix"]):
                assert np.array_equal(topk, golden.topk(layer.info["topk"], entry["suffix"]))


@pytest.mark.parametrize("name", ["D6", "V6_csa", "V6_hca"])
def test_published_dimensions_within_a_budget(opened, name):
    golden, layers = opened(name)
    workspace = layers[0].context.workspace()
    options = {"stage_budget": 1 << 16, "workspace": workspace}
    ((y, *_),) = run(golden, layers, golden.meta["chunk_plans"][0], 3, **options)
    assert worst(y, golden.wanted()) < golden.tolerance["fp32_y"] and workspace.bytes > 4096


def test_the_caches_hold_each_token_once_and_nothing_else(opened):
    golden, layers = opened("D5_batch")
    ((_, _, caches),) = run(golden, layers, [7, 1, 12], 5)
    for name, wanted in {
        "primary": np.concatenate([golden["mid.latent"], golden["mid.kpe"]], -1),
        "index": golden["mid.index_k"],
    }.items():
        page = caches.groups[name][0]
        values = caches.memory[name].view(np.float32).reshape(-1, page, wanted.shape[-1])
        for request in range(3):
            at = caches.rows_of(name, request, golden.tokens)
            assert worst(values[at], wanted[request]) < golden.tolerance["fp32_mid"]
            values[at] = np.nan
        assert np.isnan(values).all()


def test_requests_of_many_lengths_through_one_plan(opened):
    goldens = [opened(f"D5_var{i}")[0] for i in (2, 0, 1)]
    layer = opened("D5_var0")[1][0]
    for seed in range(3):
        random = np.random.default_rng(seed)
        caches = Caches(layer, random, 3, 40)
        while any(caches.done[r] < golden.tokens for r, golden in enumerate(goldens)):
            step = []
            for r in random.permutation(3):
                left = goldens[r].tokens - int(caches.done[r])
                step.append((int(r), min(left, int(random.choice([0, 1, 6])))))
            parts = [(r, slice(int(caches.done[r]), int(caches.done[r]) + n)) for r, n in step]
            named = caches.begin(step)
            hidden = np.concatenate([goldens[r].rows("in.hidden")[part] for r, part in parts])
            y = layer.forward(hidden, caches.plan, caches=named)
            wanted = np.concatenate([goldens[r].wanted()[part] for r, part in parts])
            rms = np.sqrt(np.mean(goldens[0].wanted() ** 2))
            assert not len(y) or np.abs(y - wanted).max() / rms < goldens[0].tolerance["fp32_y"]


# fp8 caches: the bytes that the layer wrote, read by NumPy, and attention over them in float64.


def softmax(logits, sink=None):
    """Weights of each row's logits [...,K] (-inf: none); a sink joins the denominator only."""
    top = logits.max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    weights = np.exp(logits - top)
    total = weights.sum(-1, keepdims=True)
    return weights / (total if sink is None else total + np.exp(sink[:, None] - top))


def rotated(x, golden, sign=1):
    """x [T,...,rope] with pairs side by side, turned by the file's angles."""
    shape = (len(x),) + (1,) * (x.ndim - 2) + (-1,)
    cos, sin = (golden[f"mid.rope_{name}"].astype(np.float64).reshape(shape) for name in ("cos", "sin"))
    even, odd = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2], out[..., 1::2] = even * cos - sign * odd * sin, odd * cos + sign * even * sin
    return out


class DsaInNumpy:
    """The attention of a V3.2 layer over given keys: what stands before and behind comes from the file."""

    def __init__(self, golden):
        config, w = golden.config(), lambda name: golden[f"w.model.layers.0.self_attn.{name}.weight"]
        self.golden, self.heads, self.nope = golden, config["num_attention_heads"], config["qk_nope_head_dim"]
        per_head = w("kv_b_proj").astype(np.float64).reshape(self.heads, -1, config["kv_lora_rank"])
        self.w_uk, self.w_uv = per_head[:, : self.nope], per_head[:, self.nope :]
        self.w_out, self.rank = w("o_proj").astype(np.float64), config["kv_lora_rank"]
        q = golden.rows("mid.qr").astype(np.float64) @ w("q_b_proj").astype(np.float64).T
        q = q.reshape(golden.tokens, self.heads, -1)
        absorbed = np.einsum("thn,hnl->thl", q[..., : self.nope], self.w_uk)
        self.q = np.concatenate([absorbed, rotated(q[..., self.nope :], golden)], -1)

    def attend(self, keys, topk):
        """y of attention to keys[topk]; and the sum of the squared terms of a logit, on average."""
        listed = np.where(topk[..., None] >= 0, keys[topk], 0.0)  # [T,K,D]
        terms = np.einsum("thd,tkd->thk", self.q, listed) * self.golden.meta["softmax_scale"]
        weights = softmax(np.where(topk[:, None] >= 0, terms, -np.inf))
        latent = np.einsum("thk,tkl->thl", weights, listed[..., : self.rank])
        core = np.einsum("thl,hvl->thv", latent, self.w_uv).reshape(len(topk), -1)
        squares = np.einsum("thd,tkd->thk", self.q**2, listed**2) * self.golden.meta["softmax_scale"] ** 2
        return core @ self.w_out.T, squares.sum() / (self.heads * (topk >= 0).sum())


@pytest.mark.parametrize("queries", ["f32", "bf16"])
def test_fp8_656_against_numpy_on_the_same_bytes(opened, queries):
    golden, (layer,) = opened("D6", queries=queries)
    caches = Caches(layer, np.random.default_rng(1), 1, 256, {"primary": "fp8_656"}, 256)
    named, topk = caches.begin([(0, 256)]), golden.topk(64)
    y = layer.forward(golden.rows("in.hidden"), caches.plan, caches=named, forced_topk=topk)
    page = caches.groups["primary"][0]
    values = numpy_formats.decode(caches.memory["primary"], "fp8_656", page, 576).reshape(-1, page, 576)
    at = caches.rows_of("primary", 0, 256)
    keys = values[at]
    model = DsaInNumpy(golden)
    wanted, _ = model.attend(keys, topk)
    if queries == "f32":
        assert worst(y, wanted) < SAME_CACHE_F32
    else:
        assert l2(y, wanted) < SAME_CACHE_BF16_L2
    check_codes(keys[:, :512].reshape(256, 4, 128), golden.rows("mid.latent").reshape(256, 4, 128))
    rope = golden.rows("mid.kpe")
    assert (np.abs(keys[:, 512:] - rope) <= np.abs(rope) * 2.0**-8 * 1.01 + 1e-4).all()
    values[at] = np.nan
    assert np.isnan(values).all()  # 0xff, what was there, is a NaN in every part of a record


def check_codes(decoded, exact):
    """Tiles [...,n] of e4m3: half a step of the exponent, or of the smallest numbers of the tile."""
    amax = np.abs(exact).max(-1, keepdims=True)
    scale = 2.0 ** np.ceil(np.log2(np.maximum(amax / 448, 1e-4)))
    assert (np.abs(decoded - exact) <= np.abs(exact) / 16 * 1.01 + scale * 2.0**-10 + 1e-4 * amax).all()


def test_fp8_656_leaves_the_error_that_its_rounding_must(opened):
    golden, (layer,) = opened("D6", activations="f64", context=smla.Context("reference"))
    session = layer.session(kv_format="fp8_656", index_format="row_f64", max_tokens=256)
    hidden, topk = golden.rows("in.hidden").astype(np.float64), golden.topk(64)
    error = l2(session.forward(hidden, forced_topk=topk), golden.wanted())
    keys = np.concatenate([golden.rows("mid.latent"), golden.rows("mid.kpe")], -1).astype(np.float64)
    squares = DsaInNumpy(golden).attend(keys, topk)[1]
    predicted = 1 / 16 / np.sqrt(3) / np.sqrt(7 / 3) * np.sqrt(1 + squares)
    assert predicted / 2 < error < OVER_PREDICTION * predicted


def test_fp8_584_against_numpy_on_the_same_bytes(opened):
    """V4's window layer: sinks, output turned back, grouped projection."""
    golden, (layer,) = opened("V6_sliding")
    caches = Caches(layer, np.random.default_rng(2), 1, 300, {"window": "fp8_584"}, 300)
    y = layer.forward(golden.rows("in.hidden"), caches.plan, caches=caches.begin([(0, 300)]))
    page = caches.groups["window"][0]
    values = numpy_formats.decode(caches.memory["window"], "fp8_584", page, 512).reshape(-1, page, 512)
    keys = values[caches.rows_of("window", 0, 300)]
    check_codes(keys[:, :448].reshape(300, 7, 64), golden.rows("mid.kv_window")[:, :448].reshape(300, 7, 64))
    w = {
        name: golden[f"w.layers.0.attn.{name}.weight"].astype(np.float64) for name in ("wq_b", "wo_a", "wo_b")
    }
    q = (golden.rows("mid.qr").astype(np.float64) @ w["wq_b"].T).reshape(300, 16, 512)
    q /= np.sqrt((q**2).mean(-1, keepdims=True) + 1e-6)
    q[..., 448:] = rotated(q[..., 448:], golden)
    seen = np.arange(300)[:, None] - np.arange(300)
    logits = np.einsum("thd,sd->ths", q, keys) * golden.meta["softmax_scale"]
    logits = np.where(((seen >= 0) & (seen < 128))[:, None], logits, -np.inf)
    sink = golden["w.layers.0.attn.attn_sink"].astype(np.float64)
    core = np.einsum("ths,sd->thd", softmax(logits, sink), keys)
    core[..., 448:] = rotated(core[..., 448:], golden, -1)
    lora = np.einsum("tgk,gnk->tgn", core.reshape(300, 2, -1), w["wo_a"].reshape(2, 64, -1))
    assert worst(y, lora.reshape(300, -1) @ w["wo_b"].T) < SAME_CACHE_F32


# Refusals.


@pytest.fixture
def step(opened):
    golden, (layer,) = opened("D2")
    caches = Caches(layer, np.random.default_rng(0), 2, 40)
    return golden.rows("in.hidden"), layer, caches, caches.begin([(0, 30), (1, 10)])


def test_steps_that_are_refused(step):
    hidden, layer, caches, named = step
    fresh = smla.Plan(["primary", "index"], max_tokens=40, max_requests=2, max_seq_len=40)
    other = smla.Plan(["primary"], max_tokens=40, max_requests=2, max_seq_len=40)
    page, _ = caches.groups["primary"]
    table = np.zeros((1, 40), np.int32)
    other.build(np.int32([0, 40]), np.int32([40]), primary=smla.PlanGroup(table, page_tokens=page))
    read_only = np.zeros(caches.memory["primary"].shape, np.uint8)
    read_only.flags.writeable = False
    frozen = smla.Cache(
        read_only, "row_f32", page, page_rows=caches.groups["primary"][1], pages=len(read_only), width=32
    )
    for field, changes in {
        "hidden.shape": {"hidden": hidden[:39]},
        "hidden": {"hidden": hidden[:, :63]},
        "hidden.dtype": {"hidden": hidden.astype(np.int32)},
        "out": {"out": np.empty((40, 63), np.float32)},
        "topk": {"topk": np.empty((40, 5), np.int32)},
        "forced_topk": {"forced_topk": np.zeros((39, 6), np.int32)},
        "max_columns": {"max_columns": -1},
        "caches: got 'secondary'": {"caches": {**named, "secondary": named["index"]}},
        r"caches: got \['primary'\], wanted the groups index, primary": {
            "caches": {"primary": named["primary"]}
        },
        r"caches\['index'\]: got smla.Cache": {"caches": {**named, "index": named["index"][0]}},
        "index.cache: got ndarray": {"caches": {**named, "index": named["index"][::-1]}},
        r"caches\['index'\]: got \(smla.Cache.*None\)": {
            "caches": {**named, "index": (named["index"][0], None)}
        },
        "the tokens of the plan": {"plan": fresh},
        r"plan: got \['primary'\], wanted the groups index, primary": {"plan": other},
        "primary.cache.data: got a read-only array": {
            "caches": {**named, "primary": (frozen, named["primary"][1])}
        },
    }.items():
        arguments = {"hidden": hidden, "plan": caches.plan, "caches": named, **changes}
        with pytest.raises(smla.InvalidArgument, match=field) as caught:
            layer.forward(**arguments)
        assert caught.value.field
    assert all((memory == 0xFF).all() for memory in caches.memory.values())
    layer.forward(hidden, caches.plan, caches=named)
    assert not all((memory == 0xFF).all() for memory in caches.memory.values())


def test_a_shared_layer_wants_a_selection(opened):
    golden, (_, layer) = opened("G2")
    caches = Caches(layer, np.random.default_rng(0), 1, 40)
    hidden, named = golden.rows("in.hidden.layer1"), caches.begin([(0, 40)])
    with pytest.raises(smla.InvalidArgument, match="forced_topk"):
        layer.forward(hidden, caches.plan, caches=named)
    y = layer.forward(hidden, caches.plan, caches=named, forced_topk=golden.topk(6, ""))
    assert worst(y, golden.wanted(".layer1")) < golden.tolerance["fp32_y"]
