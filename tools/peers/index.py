"""Rows of the indexer: scores of DeepGEMM, top-k of PyTorch and vLLM, and both steps together."""

import smla
import torch

from .inputs import relative, sample
from .pair import Pair, Skip

F8 = torch.float8_e4m3fn
PAGE, CHANNELS, RECORD = 64, 128, 132
WRONG_SCORE = 2e-3  # DeepGEMM sums products of e4m3 with about 14 bits, which gives 1.3e-4


def _quantized(inputs, keys, seed):
    """Returns random index keys: e4m3 codes [n,128] and f32 scales [n]."""
    values = inputs.normal(keys, CHANNELS, seed=seed).float()
    scales = values.abs().amax(-1).clamp(1e-4) / 448
    return (values / scales[:, None]).to(F8), scales


def _pages(codes, scales):
    """Returns the bytes of index_fp8_132 pages: the codes of 64 keys, then their scales."""
    pages = codes.shape[0] // PAGE
    parts = codes.reshape(pages, -1).view(torch.uint8), scales.reshape(pages, PAGE).view(torch.uint8)
    return torch.cat(parts, 1).contiguous()


class _Indexer:
    """Queries and keys of a row, dense (tokens x keys) or paged (batch requests of next_n tokens)."""

    def __init__(self, inputs, row):
        self.inputs, self.heads = inputs, row.get("heads", 64)
        self.next_n = row.get("next_n", 1)
        self.paged = "batch" in row
        (self._make_paged if self.paged else self._make_dense)(row)
        self.q = inputs.normal(self.tokens, self.heads, CHANNELS, dtype=torch.float32).to(F8)
        self.w = inputs.normal(self.tokens, self.heads, seed=4, dtype=torch.float32)

    def _make_dense(self, row):
        inputs, self.tokens, self.columns = self.inputs, row["tokens"], row["keys"]
        count, window = self.columns, row.get("window", "causal")
        self.codes, self.scales = _quantized(inputs, -(-count // PAGE) * PAGE, 2)
        self.starts = inputs.full(0, self.tokens)
        if window == "causal":
            self.ends = (inputs.arange(self.tokens) + count - self.tokens + 1).clamp(min=1)
        elif window == "full":
            self.ends = inputs.full(count, self.tokens)
        else:
            self.ends = inputs.integers(1, count + 1, self.tokens, seed=6)
            self.starts = (self.ends * 0.3).int()
        self.keys = smla.Cache(_pages(self.codes, self.scales), "index_fp8_132", PAGE)
        self.codes, self.scales = self.codes[:count], self.scales[:count]
        self.where = {"starts": self.starts} if window == "mixed" else {}

    def _make_paged(self, row):
        inputs, batch, mean = self.inputs, row["batch"], row["keys"]
        lengths = row.get("lengths", "near")
        if lengths == "near":
            self.lengths = inputs.integers(int(0.7 * mean), int(1.3 * mean), batch, seed=6)
        elif lengths == "equal":
            self.lengths = inputs.full(mean, batch)
        elif lengths == "any":
            self.lengths = inputs.integers(1, 2 * mean, batch, seed=6)
        else:
            self.lengths = inputs.full(2000, batch)
            self.lengths[batch // 3] = mean
        blocks = (self.lengths + PAGE - 1) // PAGE
        total, most = int(blocks.sum()), int(blocks.max())
        codes, scales = _quantized(inputs, total * PAGE, 2)
        self.cache = _pages(codes, scales)
        self.codes, self.scales = codes.view(total, PAGE, CHANNELS), scales.view(total, PAGE)
        order = torch.randperm(total, generator=inputs.generator(9), device=inputs.device).int()
        self.table = inputs.full(0, batch, most)
        taken = 0
        for request, count in enumerate(blocks.tolist()):
            self.table[request, :count] = order[taken : taken + count]
            taken += count
        self.tokens, self.columns = batch * self.next_n, most * PAGE
        steps = inputs.arange(self.next_n) + 1 - self.next_n
        self.context = (self.lengths[:, None] + steps).clamp(min=1).int().contiguous()
        self.starts, self.ends = inputs.full(0, self.tokens), self.context.flatten()
        self.keys = smla.Cache(self.cache, "index_fp8_132", PAGE)
        requests = inputs.arange(self.tokens) // self.next_n
        self.where = {"block_table": self.table, "request_of_token": requests}

    def window(self, token):
        return int(self.starts[token]), min(int(self.ends[token]), self.columns)

    def scores(self, token):
        """Returns the exact scores of one token's window in f64."""
        first, end = self.window(token)
        codes, scales = self.codes, self.scales
        if self.paged:
            pages = self.table[token // self.next_n].long()
            codes, scales = codes[pages].view(-1, CHANNELS), scales[pages].view(-1)
        keys = codes[first:end].double() * scales[first:end, None].double()
        return self.w[token].double() @ (self.q[token].double() @ keys.T).relu()

    def peer_scores(self, gemm, clean=False):
        """Returns DeepGEMM's call. Its schedule is computed once, before the measurement."""
        if not self.paged:
            dense = (self.q, None), (self.codes, self.scales), self.w, self.starts, self.ends, clean
            return lambda: gemm.fp8_fp4_mqa_logits(*dense)
        batch = self.table.shape[0]
        q = self.q.view(batch, self.next_n, self.heads, CHANNELS)
        parts = gemm.get_num_sms() // (2 if self.next_n == 4 else 1)
        schedule = gemm.get_paged_mqa_logits_metadata(self.context, PAGE, parts)
        cache = self.cache.view(-1, PAGE, 1, RECORD)
        return lambda: gemm.fp8_fp4_paged_mqa_logits(
            (q, None), cache, self.w, self.context, self.table, schedule, self.columns, clean
        )

    def score(self, precision, logits=None, fill=False):
        return smla.score(
            self.q,
            self.w,
            self.keys,
            self.ends,
            columns=self.columns,
            fill=fill,
            precision=precision,
            logits=logits,
            **self.where,
        )

    def score_select(self, k, precision):
        return smla.score_select(
            self.q, self.w, self.keys, self.ends, k, columns=self.columns, precision=precision, **self.where
        )

    def check_scores(self, peer, ours):
        errors, difference = [], 0.0
        for each in (peer, ours):
            got, wanted = [], []
            for token in sample(self.tokens):
                first, end = self.window(token)
                got.append(each[token, first:end].double())
                wanted.append(self.scores(token))
            errors.append(relative(torch.cat(got), torch.cat(wanted)))
        columns = torch.arange(self.columns, device=ours.device)
        for first in range(0, self.tokens, 512):
            rows = slice(first, first + 512)
            outside = (columns < self.starts[rows, None]) | (columns >= self.ends[rows, None])
            a, b = (each[rows, : self.columns].masked_fill(outside, 0) for each in (ours, peer))
            difference = max(difference, relative(a, b))
        return {"errors": errors, "difference": difference, "limit": WRONG_SCORE}

    def check_selection(self, k):
        """Returns whether each selection has the k best scores of its row, up to the error of the scores."""

        def check(peer, ours):
            errors = [0.0, 0.0]
            for token in sample(self.tokens):
                scores = self.scores(token)
                best = min(k, scores.numel())
                wanted = torch.topk(scores, best).values
                for side, each in enumerate((peer, ours)):
                    listed = each[token][each[token] >= 0].long() - self.window(token)[0]
                    distinct = torch.unique(listed)
                    if len(distinct) != best or int(distinct.max()) >= scores.numel():
                        errors[side] = float("inf")
                        continue
                    got = scores[listed].sort(descending=True).values
                    errors[side] = max(errors[side], relative(got, wanted))
            return {"errors": errors, "limit": WRONG_SCORE}

        return check


def score(inputs, gemm, row):
    """Compares smla.score with DeepGEMM's logits, with the precision that the row names."""
    indexer = _Indexer(inputs, row)
    clean = row.get("clean", False)
    logits = torch.empty(indexer.tokens, indexer.columns, device=inputs.device)

    def ours():
        return indexer.score(row["precision"], logits, fill=bool(clean))

    return Pair(indexer.peer_scores(gemm, clean), ours, indexer.check_scores)


def _matrix(inputs, row):
    tokens, columns, kind = row["tokens"], row["columns"], row.get("values", "normal")
    if kind in ("normal", "relu"):
        scores = inputs.normal(tokens, columns, dtype=torch.float32)
        return scores.relu_() if kind == "relu" else scores
    if kind == "ties":
        return inputs.integers(0, 50, tokens, columns).float()
    if kind == "equal":
        return torch.ones(tokens, columns, device=inputs.device)
    return (inputs.arange(columns, torch.float32) / columns).expand(tokens, columns).contiguous()  # ascending


def _check_top(scores, ends, k):
    """Returns the check of a selection, which counts rows of each side whose values are not the k best."""
    inside = scores
    if ends is not None:
        columns = torch.arange(scores.shape[1], device=scores.device)
        inside = scores.masked_fill(columns[None] >= ends[:, None], float("-inf"))
    best = torch.topk(inside, min(k, scores.shape[1]), 1).values

    def wrong(chosen):
        chosen = chosen.long()
        outside = (chosen < 0) | (chosen >= scores.shape[1])
        order = chosen.masked_fill(outside, -1).sort(1).values
        repeated = ((order[:, 1:] == order[:, :-1]) & (order[:, 1:] >= 0)).any(1)
        values = inside.gather(1, chosen.masked_fill(outside, 0)).masked_fill(outside, float("-inf"))
        values = values.sort(1, descending=True).values[:, : best.shape[1]]
        return int(((values != best).any(1) | repeated).sum())

    def check(peer, ours):
        counts = [wrong(peer), wrong(ours)]
        return {"errors": [float(count) for count in counts], "limit": 0.5}

    return check


def select(inputs, peer, row):
    """Compares smla.select, which also sorts by column, with torch.topk or a kernel of vLLM."""
    scores, k, tokens = _matrix(inputs, row), row["k"], row["tokens"]
    if row["kernel"] == "torch.topk":
        return Pair(
            lambda: torch.topk(scores, k, 1, sorted=False).indices,
            lambda: smla.select(scores, k).indices,
            _check_top(scores, None, k),
        )
    ends = inputs.lengths(row.get("lengths"), tokens, scores.shape[1])
    ends = inputs.full(scores.shape[1], tokens) if ends is None else ends
    theirs = vllm_top_k(inputs, peer, row["kernel"], tokens, k)
    return Pair(
        lambda: theirs(scores, ends),
        lambda: smla.select(scores, k, ends=ends).indices,
        _check_top(scores, ends, k),
    )


def vllm_top_k(inputs, ops, kernel, tokens, k):
    """Returns a kernel of vLLM as a function of scores [T,N] and ends [T]. "decode": vLLM's choice."""
    workspace = torch.zeros(1 << 20, device=inputs.device, dtype=torch.uint8)
    starts, out = inputs.full(0, tokens), inputs.full(-1, tokens, k)
    name = kernel
    if kernel == "decode":
        name = "cooperative_topk" if tokens <= 32 else "persistent_topk"

    def run(scores, ends):
        if name == "top_k_per_row_prefill":
            ops.top_k_per_row_prefill(scores, starts, ends, out, tokens, *scores.stride(), k)
        elif name == "top_k_per_row_decode":
            ops.top_k_per_row_decode(scores, 1, ends, out, tokens, *scores.stride(), k)
        else:
            getattr(ops, name)(scores, ends, out, workspace, k, scores.shape[1])
        return out

    return run


def score_select(inputs, peers, row):
    """Compares smla.score_select with DeepGEMM's logits followed by a top-k kernel."""
    gemm, ops = peers
    indexer, k = _Indexer(inputs, row), row.get("k", 2048)
    if indexer.columns < k:
        raise Skip(f"fewer than {k} columns")
    with_torch = row["kernel"] == "torch.topk"
    scores = indexer.peer_scores(gemm, clean=with_torch)  # torch.topk needs -inf outside the windows
    if with_torch:

        def theirs():
            return torch.topk(scores(), k, 1, sorted=False).indices
    else:
        top = vllm_top_k(inputs, ops, row["kernel"], indexer.tokens, k)

        def theirs():
            return top(scores()[:, : indexer.columns], indexer.ends)

    return Pair(theirs, lambda: indexer.score_select(k, row["precision"]).indices, indexer.check_selection(k))
