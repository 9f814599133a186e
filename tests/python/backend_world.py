"""Random steps for attention backends, with caches, queries and NumPy's results in float64."""

import numpy as np
import numpy_formats as formats
import smla

LATENT = ("FLASHMLA_SPARSE", "SPARSE_MLA_SM120", "TRITON_MLA_SPARSE")
HYBRID = ("DSV4_SPARSE_MLA_SM120", "FLASHMLA_SPARSE_DSV4", "FLASHINFER_MLA_SPARSE_DSV4")
SHARED = ("FLASHMLA_SPARSE_DSV41", "FLASHINFER_MLA_SPARSE_DSV41")
FAMILY = {name: "dsa" for name in LATENT} | {name: "hybrid" for name in HYBRID}
FAMILY |= {name: "hybrid_shared" for name in SHARED}
RATIOS = {"dsa": (0,), "hybrid": (0, 4, 128), "hybrid_shared": (0, 1, 2)}
MAXIMA = {"max_tokens": 40, "max_requests": 4, "max_seq_len": 300, "speculative_tokens": 1}
KINDS = [(name, ratio) for name, family in FAMILY.items() for ratio in RATIOS[family]]
PUBLISHED = {"kv_lora_rank": 512, "rope_dim": 64, "nope_dim": 128, "v_head_dim": 128, "softmax_scale": 0.03}
SMALL_LATENT = {"heads": 3, "kv_lora_rank": 24, "rope_dim": 8, "nope_dim": 10, "v_head_dim": 6}
SMALL_HYBRID = {"heads": 3, "head_dim": 20, "rope_dim": 4, "window": 9}


def options_of(name, ratio=0, **more):
    """Backend options of small dimensions: f32 queries and caches unless `more` says otherwise."""
    small = {**(SMALL_LATENT if name in LATENT else SMALL_HYBRID), "ratio": ratio}
    topk = 11 if name in LATENT or ratio in (1, 2, 4) else 0
    own = {
        "family": FAMILY[name],
        "dtype": "f32",
        "kv_cache_dtype": "row_f32",
        "softmax_scale": 0.31,
        "topk": topk,
    }
    return {**own, **small, **MAXIMA, **more}


class Group:
    """Pages of a cache and the tables of its requests. Every row holds poison until it is written."""

    def __init__(self, random, requests, places, format, width, scale=1.0):
        self.page = int(random.choice([1, 2, 7, 64]))
        self.format, self.width, self.scale = format, width, scale
        columns = places // self.page + 2
        pages = requests * columns + 2
        self.memory = np.full((pages, formats.page_bytes(format, self.page, width)), 0xFF, np.uint8)
        self.table = (
            random.permutation(pages)[: requests * columns].reshape(requests, columns).astype(np.int32)
        )
        plain = width if format.startswith("row") else 0
        scale = scale if format in ("fp8_512", "fp8_576") else None
        self.cache = smla.Cache(self.memory, format, self.page, pages=pages, width=plain, scale=scale)

    def rows(self, request, places):
        places = np.asarray(places, np.int64)
        return self.table[request, places // self.page].astype(np.int64) * self.page + places % self.page

    def write(self, random, rows):
        values = random.standard_normal((len(rows), self.width)).astype(np.float32)
        smla.write_kv(values, np.asarray(rows, np.int64), self.cache)

    def values(self):
        """[rows,width] in float64, as the bytes are now."""
        return formats.decode(self.memory, self.format, self.page, self.width, self.scale)

    def plan_group(self, slots=None):
        return smla.PlanGroup(self.table, slots, self.page)


class World:
    """A step of a backend: `arguments` of forward, the batch of its metadata, and `wanted()` afterwards."""

    def __init__(self, name, options, seed, written=False, invalid=False):
        self.name, self.options, self.random = name, options, np.random.default_rng(seed)
        self.latent, self.written = name in LATENT, written
        ratio = 0 if self.latent else options.get("ratio", 0)  # lists of pools hold tokens all the same
        pages = {"page_tokens": max(ratio, 1), "window_page_tokens": 1}  # of any size
        self.backend = smla.Backend(name, **{**pages, **options})
        self.width, self.heads = self.backend.info["head_size"], options["heads"]
        self._draw_batch(invalid)
        format, scale = self.backend.info["format"], options.get("kv_scale", 1.0)
        most = options["max_seq_len"]
        self.group = Group(self.random, self.requests, most, format, self.width, scale)  # of every token
        self.entries = None
        if ratio:
            format = self.backend.info["compressed_format"]
            self.entries = Group(self.random, self.requests, most // ratio, format, self.width, scale)
        self._fill_caches(ratio)
        self._draw_inputs(ratio)
        self.metadata = self.backend.metadata()
        self.build()

    def _draw_batch(self, invalid):
        random = self.random
        self.requests = int(random.integers(1, 5))
        decodes = int(random.integers(0, self.requests + 1))
        self.lengths = np.array(
            [random.integers(0, 3) if r < decodes else random.integers(1, 10) for r in range(self.requests)]
        )
        before = random.choice([0, 3, 40, 127, 250], self.requests)
        self.starts = np.cumsum([0, *self.lengths]).astype(np.int32)
        self.seq_lens = (before + self.lengths).astype(np.int32)
        self.used = int(self.starts[-1])
        self.tokens = self.used + int(random.choice([0, 0, 3]))  # with padding
        self.request = np.repeat(np.arange(self.requests), self.lengths)
        self.position = np.concatenate(
            [b + np.arange(n) for b, n in zip(before, self.lengths)] or [[]]
        ).astype(int)
        self.valid = np.ones(self.used, bool)
        if invalid and self.used:
            self.valid[random.integers(0, self.used, 3)] = False

    def _fill_caches(self, ratio):
        """Writes the tokens that requests hold already. Rows that the step will write stay poison."""
        self.slots = np.concatenate(
            [self.group.rows(r, self.position[self.request == r]) for r in range(self.requests)]
        ).astype(np.int64)
        for r, n in enumerate(self.seq_lens):
            rows = self.group.rows(r, np.arange(n))
            kept = rows if self.written else np.setdiff1d(rows, self.slots[self.valid])
            self.group.write(self.random, kept)
            if ratio:
                self.entries.write(self.random, self.entries.rows(r, np.arange(n // ratio)))
        self.slots[~self.valid] = -1

    def _poisoned(self, *shape, scale=1.0):
        """Random values for the step's tokens; NaN for padding and for rows behind the step."""
        out = np.full((self.tokens + 2, *shape), np.nan, np.float32)
        out[: self.used] = self.random.standard_normal((self.used, *shape)) * scale
        return out

    def _typed(self, values):
        """As the options' dtype of queries."""
        if self.options["dtype"] == "bf16":
            return smla.tensor(formats.to_bits(values, "bf16"), "bf16")
        return values

    def _draw_inputs(self, ratio):
        o, random = self.options, self.random
        width = o["nope_dim"] + max(o["rope_dim"], 0) if self.latent else self.width
        self.q = self._poisoned(self.heads, width)
        self.k = self._poisoned(self.width)
        self.arguments = {"q": self._typed(self.q)}
        self.sink = None
        if self.latent:
            rank = o["kv_lora_rank"]
            self.w_uk = random.standard_normal((self.heads, o["nope_dim"], rank)).astype(np.float32) / 3
            self.w_uv = random.standard_normal((self.heads, rank, o["v_head_dim"])).astype(np.float32) / 3
            self.arguments |= {"w_uk_t": self._typed(self.w_uk), "w_uv": self._typed(self.w_uv)}
            self.arguments["kv_cache"] = self.group.cache
            if not self.written:
                self.arguments["k_c"] = self.k[:, :rank]
                self.arguments["k_pe"] = self.k[:, None, rank:] if self.width > rank else None
        else:
            self.arguments["swa_cache"] = self.group.cache
            if ratio:
                self.arguments["kv_cache"] = self.entries.cache
            if not self.written:
                self.arguments["k_c"] = self.k
            if random.integers(4):
                self.sink = random.standard_normal(self.heads + 2).astype(np.float32)  # longer ones are cut
                self.arguments["sink"] = self.sink
        self.lse = np.full((self.tokens + 2, self.heads), 7, np.float32)
        self.arguments["lse"] = self.lse
        if self.latent or ratio in (1, 2, 4):
            self._draw_topk(ratio or 1)

    def _draw_topk(self, ratio):
        """Some of what a token sees, holes anywhere; of entries within the columns that are visible."""
        columns = self.options["topk"]
        self.topk = np.full((self.tokens + 2, columns), 1, np.int32)  # plausible behind the step
        for t in range(self.used):
            visible = (self.position[t] + 1) // ratio
            # a token that is not valid writes no row, so no list may name it
            hidden = self.position[(self.request == self.request[t]) & ~self.valid] if self.latent else []
            seen = np.setdiff1d(np.arange(visible), hidden)
            picked = self.random.permutation(seen)[:columns]
            self.topk[t] = -1
            self.topk[t, : len(picked)] = picked
            self.topk[t, self.random.random(columns) < 0.2] = -1
            if self.latent:
                self.topk[t] = self.random.permutation(self.topk[t])
        self.arguments["topk_indices"] = self.topk

    def build(self, metadata=None):
        groups = {"primary" if self.latent else "window": self.group.plan_group(self.slots)}
        if self.entries:
            groups["compressed"] = self.entries.plan_group()
        metadata = self.metadata if metadata is None else metadata
        metadata.build(self.starts, self.seq_lens, tokens=self.tokens, **groups)

    def forward(self, **more):
        return self.backend.forward(self.metadata, **{**self.arguments, **more})

    def _attended(self, t):
        """Keys [K,width] of token t in float64, as the caches are now."""
        request, position, ratio = int(self.request[t]), int(self.position[t]), self.options.get("ratio", 0)
        if self.latent:
            return self.now[self.group.rows(request, self.topk[t][self.topk[t] >= 0])]
        near = np.arange(max(0, position + 1 - self.options["window"]), position + 1)
        keys = self.now[self.group.rows(request, near)]
        if not ratio:
            return keys
        visible = (position + 1) // ratio
        picked = np.arange(visible) if ratio == 128 else self.topk[t][self.topk[t] >= 0]
        return np.concatenate([keys, self.entries_now[self.entries.rows(request, picked)]])

    def wanted(self, q=None):
        """out and lse of the step's tokens in float64, from the caches as they are now."""
        self.now = self.group.values()
        self.entries_now = self.entries.values() if self.entries else None
        q = self.q[: self.used].astype(np.float64) if q is None else q
        if self.latent:
            nope = self.options["nope_dim"]
            absorbed = np.einsum("thn,hnl->thl", q[..., :nope], self.w_uk.astype(np.float64))
            q = np.concatenate([absorbed, q[..., nope:]], -1)
        rank = self.options.get("kv_lora_rank", self.width) if self.latent else self.width
        out, lse = np.zeros((self.tokens, self.heads, rank)), np.full((self.tokens, self.heads), -np.inf)
        # V4 tells tokens from padding by the window's slots, V3.2 by the lists
        for t in range(self.used) if self.latent else np.flatnonzero(self.valid):
            keys = self._attended(t)
            if not len(keys):
                continue
            logits = q[t] @ keys.T * self.options["softmax_scale"]
            top = logits.max(-1, keepdims=True)
            weights = np.exp(logits - top)
            total = weights.sum(-1, keepdims=True)
            lse[t] = (top + np.log(total))[:, 0]
            if self.sink is not None:
                total = total + np.exp(self.sink[: self.heads, None].astype(np.float64) - top)
            out[t] = weights / total @ keys[:, :rank]
        if self.latent:
            out = np.einsum("thl,hlv->thv", out, self.w_uv.astype(np.float64))
        return out, lse
