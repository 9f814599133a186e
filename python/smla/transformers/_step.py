"""A step of one attention layer, which converts a padded batch to requests of a session and back."""

import torch

from ._cache import AFTER_FAILURE, FEW_TOKENS, STEP_TOKENS, cache_layer_of
from ._columns import Once, step_columns
from ._mask import refused


def run(module, cache, hidden, mask, positions, forced, *, keep=True, in_graph=False):
    """Returns out [B,S,X] of hidden [B,S,X], and the selection [B,S,k] i32 on the host if later layers share
    it, otherwise None. Rows of padding are 0.

    mask: result of make_mask, or [B,S] bool of GLM-5.3-Flash. positions: [B or 1,S] or None. forced:
    selection of an earlier layer. keep: later steps use the cache. in_graph: a compiled graph advances the
    clock.
    """
    layer = module.smla_layer()
    batch, steps, _ = hidden.shape
    if batch == 0:
        raise refused("hidden_states", f"shape {list(hidden.shape)}", "one sequence or more")
    real, columns = step_columns(mask, cache.columns, batch, steps, module)
    whole = bool(real.all())
    width = max(min(STEP_TOKENS // batch, steps), 1)  # columns per part
    room = max(batch * width, batch * FEW_TOKENS if keep else 1)
    cache.open(layer, module.smla_options(), batch, columns.count, room, keep=keep)
    kind = layer.info["kind"]
    if positions is not None:
        positions = _on_host(positions, module).expand(batch, steps)
    if kind != "dsa_shared":
        forced = None
    elif forced is None:
        raise refused("prev_topk_indices", "None", "the selection of an earlier layer")
    selects = module.selection_is_shared()
    chosen = torch.full((batch, steps, layer.info["topk"]), -1, dtype=torch.int32) if selects else None
    out = torch.empty_like(hidden) if whole else torch.zeros_like(hidden)
    with cache.step():
        if module.pools:
            positions = None  # this model has no rotation
        elif positions is not None and not kind.startswith("dsa"):
            _check_order(cache, positions, real)
            positions = None
        for first in range(0, steps, width):
            part = slice(first, min(first + width, steps))
            _run_part(cache.session, part, hidden, real, positions, forced, out, chosen)
        cache.hold(columns, in_graph)
    if keep:
        cache.close(batch)
    return out, chosen


# A copy to the host waits for all queued work of the GPU, so all layers share the copy of the first one.
_copies = Once(lambda positions: positions.to("cpu", torch.int64))


def _on_host(positions, module):
    """Returns positions [...,S] as i64 on the host."""
    return positions.to(torch.int64) if positions.device.type == "cpu" else _copies(positions, module)


def _check_order(cache, positions, real):
    """Checks that positions of V4 are consecutive, because the position of a compressed entry is computed
    from its index."""
    if cache.shift is None:
        cache.shift = torch.full((len(real),), -1)
    done = torch.tensor(cache.columns.tokens)
    order = done[:, None] + real.cumsum(1) - 1
    for row in range(len(real)):
        distance = (positions[row] - order[row])[real[row]]
        if len(distance) == 0:
            continue
        if cache.shift[row] == -1:
            cache.shift[row] = distance[0]
        if not bool((distance == cache.shift[row]).all()):
            if bool((positions[row] == cache.tokens + torch.arange(real.shape[1])).all()):
                raise refused(
                    "attention_mask",
                    f"padding after tokens, in sequence {row}",
                    "padding only before the first token, or position_ids that count the tokens",
                )
            raise refused("position_ids", f"{positions[row].tolist()[:8]}", "the order of the tokens")


def _run_part(session, part, hidden, real, positions, forced, out, chosen):
    """Runs the columns `part` of all sequences as one step of the session."""
    now = real[:, part]
    counts = now.sum(1).tolist()
    if not any(counts):
        return
    whole = bool(now.all())
    options = {}

    def pick(values):
        values = values[:, part]
        return values.reshape(-1, *values.shape[2:]) if whole else values[now.to(values.device)]

    if positions is not None:
        options["rope_positions"] = pick(positions)
    if forced is not None:
        options["forced_topk"] = pick(forced)
    place = out[:, part]
    direct = whole and place.is_contiguous()
    rows = place.view(-1, place.shape[-1]) if direct else None
    result = session.forward(pick(hidden), list(enumerate(counts)), out=rows, **options)
    if not direct:
        place[now.to(place.device)] = result
    if chosen is not None:
        chosen[:, part][now] = torch.from_numpy(session.topk)


@torch.library.custom_op("smla::transformers_step", mutates_args=("number",))
def compiled_step(
    number: torch.Tensor,
    clock: torch.Tensor,
    hidden: torch.Tensor,
    mask: torch.Tensor | None,
    positions: torch.Tensor | None,
    forced: torch.Tensor | None,
    topk: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Calls run() in a compiled graph. number: number of the cache layer, declared as mutated so that
    compilers do not drop, repeat or move the step. clock: number of cached columns, which later operators of
    the graph advance. topk: columns of the selection; 0: none."""
    cache = cache_layer_of(int(number))
    if int(clock) != cache.tokens:
        raise refused("past_key_values", "a cache whose last step failed midway", AFTER_FAILURE)
    out, chosen = run(cache.module(), cache, hidden, mask, positions, forced, in_graph=True)
    return out, chosen if topk else torch.empty(0, dtype=torch.int32)


@compiled_step.register_fake
def _(number, clock, hidden, mask, positions, forced, topk):
    shape = (*hidden.shape[:2], topk) if topk else (0,)
    return torch.empty_like(hidden), torch.empty(shape, dtype=torch.int32, device="cpu")
