"""Small calls of every stage for the tests of smla.torch, hostile where the contract allows it."""

import inspect

import smla
import smla.torch
import torch
from torch.utils._python_dispatch import TorchDispatchMode

T, H, W, K = 5, 3, 32, 7  # tokens, heads, width of a row, listed rows
PAGES, PAGE = 4, 3
SLOTS = PAGES * PAGE


def memory(value):
    """The bytes of what a call takes or gives, with shape and dtype; None for what is no array."""
    if isinstance(value, (smla.Cache, smla.Tensor)):
        value = value.array
    if not isinstance(value, torch.Tensor):
        return None
    return value.detach().contiguous().view(torch.uint8).clone(), tuple(value.shape), value.dtype


def same(got, wanted):
    """Whether two memories are equal, NaN and zeros bit for bit."""
    if got is None or wanted is None:
        return got is wanted
    return got[1:] == wanted[1:] and torch.equal(got[0], wanted[0])


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def integers(low, high, *shape, seed=0, dtype=torch.int32):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def row_cache(width=W, seed=1, dtype=torch.float32, pages=PAGES):
    """Pages of plain rows, farther apart than they are long; NaN between them."""
    memory = torch.full((pages, PAGE * width + 8), torch.nan, dtype=dtype)
    memory[:, : PAGE * width] = normal(pages, PAGE * width, seed=seed, dtype=dtype)
    format = {torch.float32: "row_f32", torch.float64: "row_f64", torch.bfloat16: "row_bf16"}[dtype]
    return smla.Cache(memory[:, : PAGE * width], format, PAGE, width=width)


def index_cache(format):
    """Encoded index keys of every slot, in one run of bytes."""
    cache = smla.Cache.empty(format, PAGES, PAGE, like=torch.empty(0))
    smla.write_index(normal(SLOTS, 128, seed=2), torch.arange(SLOTS), cache)
    return cache


def written_cache():
    """Records of every slot, by a writer that is not the default one."""
    like, writer = torch.empty(0), smla.Writer.SCALE_FLOOR | smla.Writer.BF16_FIRST
    cache = smla.Cache.empty("fp8_528_g32", PAGES, PAGE, like=like, writer=writer)
    smla.write_kv(normal(SLOTS, 512, seed=2), torch.arange(SLOTS), cache)
    return cache


def rows(seed=3):
    """[T,K] with holes anywhere, beyond the cache too; the last token has none but holes."""
    listed = integers(-3, SLOTS + 3, T, K, seed=seed)
    listed[-1] = -1
    return listed


def _state():
    state = smla.Cache(normal(2, 4, 64, seed=4), "state_f32", 4)
    table, request = torch.tensor([[1, 0]], dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    slots = torch.tensor([-1, -1, -1, 2, -1, -1, -1, 5])
    entries = torch.full((8, W // 2), 7.0)
    return (
        state,
        table,
        request,
        torch.arange(8),
        slots,
        1 + normal(W // 2) / 4,
        torch.tensor([0.5, 0.25], dtype=torch.float64),
        row_cache(W // 2),
    ), {"ratio": 4, "eps": 1e-6, "entries": entries}


def _quantized(dtype):
    q, w = normal(T, 4, 128), normal(T, 4, seed=5)
    return smla.quant_index_q(q, w, factor=0.01, dtype=dtype)


def _scored(format, dtype, paged):
    query, keys = _quantized(dtype), index_cache(format)
    q = query.q
    more = {"starts": torch.tensor([0, 1, 2, -4, 0], dtype=torch.int32)}
    if query.scales is not None:
        more["q_scales"], q = smla.tensor(query.scales, "e8m0"), smla.tensor(q, "e2m1")
    if paged:
        more |= {
            "block_table": torch.tensor([[2, 0, 9], [3, -1, 1]], dtype=torch.int32),
            "request_of_token": torch.tensor([0, 1, 0, 1, 0], dtype=torch.int32),
        }
    return (q, query.w, keys, torch.tensor([9, 4, 2, 6, 0], dtype=torch.int32)), more


def _scored_rows():
    """Plain queries and keys; rows that no token sees are NaN."""
    keys = row_cache()
    keys.array[0, :W], keys.array[-1, -W:] = torch.nan, torch.nan
    ends, starts = integers(2, SLOTS, T), torch.ones(T, dtype=torch.int32)
    return (normal(T, 4, W)[:, 1:], normal(T, 3), keys, ends), {"starts": starts}


def _attend():
    return (normal(T, H, W), row_cache(), rows()), {"softmax_scale": 0.2}


def _attend_all():
    return (normal(T, H, W), row_cache(), rows(), integers(-1, K + 2, T)), {
        "softmax_scale": torch.tensor([0.2]),
        "extra": row_cache(seed=6, pages=2),
        "extra_rows": integers(-2, 9, T, 2),
        "extra_lengths": integers(0, 3, T),
        "sink": normal(H),
        "value_width": 24,
        "lse": True,
        "max_logits": True,
        "lse_base": "log2",
        "precision": "exact",
    }


def _rope():
    frequencies = torch.tensor([1.0, 0.3, 0.1, 0.01], dtype=torch.float64)
    return normal(T, H, 20), integers(0, 99, T, dtype=torch.int64), frequencies


def _product():
    return normal(T, H, 8), normal(H, 6, 8, seed=8)


_PAIRS = torch.tensor([[0, 2], [3, 1]], dtype=torch.int32)

# Name: a function of nothing that gives the stage, its arguments and its keywords: new where a call writes.
CASES = {
    "norm": lambda: ("norm", (normal(T, 2, W), 1 + normal(W) / 4), {"eps": 1e-6}),
    "norm layer": lambda: (
        "norm",
        (normal(T, 2, W, dtype=torch.bfloat16), normal(W), normal(W, seed=1)),
        {"eps": 1e-5, "kind": "layer"},
    ),
    "rope": lambda: ("rope", _rope(), {"first": 12}),
    "rope half": lambda: ("rope", _rope(), {"first": 2, "style": "half", "inverse": True}),
    "inverse_rope": lambda: ("inverse_rope", _rope(), {"first": 12}),
    "project": lambda: ("project", _product(), {}),
    "absorb": lambda: ("absorb", _product(), {"out_dtype": "bf16"}),
    "up_project": lambda: ("up_project", (normal(T, H, 8), normal(H, 8, 6).transpose(1, 2)), {}),
    "out_project": lambda: ("out_project", _product(), {"out_dtype": torch.float64}),
    "quant_index_q": lambda: ("quant_index_q", (normal(T, 4, 128), normal(T, 4)), {"factor": 0.01}),
    "quant_index_q e2m1": lambda: (
        "quant_index_q",
        (normal(T, 4, 128), normal(T, 4)),
        {"factor": 0.01, "dtype": "e2m1", "hadamard": True},
    ),
    "write_kv": lambda: (
        "write_kv",
        (normal(T, 20), integers(-2, SLOTS, 4, dtype=torch.int64), row_cache()),
        {"tail": normal(T, 12)},
    ),
    "write_kv by another writer": lambda: (
        "write_kv",
        (normal(T, 512), integers(-2, SLOTS, 4, dtype=torch.int64), written_cache()),
        {},
    ),
    "write_index": lambda: (
        "write_index",
        (normal(T, 128), torch.tensor([4, -1, 11, 0], dtype=torch.int32), index_cache("index_fp8_132")),
        {"hadamard": True},
    ),
    "save_state": lambda: (
        "save_state",
        (
            normal(T, W),
            normal(T, W, seed=1),
            normal(4, W),
            torch.arange(T),
            torch.tensor([3, -1, 0, 9, 5]),
            smla.Cache(normal(PAGES, PAGE, 2 * W, seed=9), "state_f32", PAGE),
        ),
        {},
    ),
    "compress": lambda: ("compress", *_state()),
    "gather": lambda: (
        "gather",
        (
            row_cache(),
            integers(0, PAGES, 2, 2),
            torch.tensor([0, 4, 7], dtype=torch.int32),
            torch.full((9, W), 3.0),
        ),
        {"starts": torch.tensor([1, 0], dtype=torch.int32)},
    ),
    "gather raw": lambda: (
        "gather",
        (
            index_cache("index_fp8_132"),
            integers(0, PAGES, 1, 3),
            torch.tensor([0, 8], dtype=torch.int32),
            torch.zeros(9, 128, dtype=torch.float8_e4m3fn),
        ),
        {"raw": True, "scales": torch.zeros(9)},
    ),
    "copy_pages": lambda: ("copy_pages", (row_cache(), row_cache(seed=7), _PAIRS), {}),
    "score": lambda: ("score", *_scored("index_fp8_132", "e4m3", True)),
    "score e2m1": lambda: ("score", *_scored("index_mxfp4_68", "e2m1", False)),
    "score rows": lambda: ("score", *_scored_rows()),
    "select": lambda: (
        "select",
        (normal(T, 40), 6),
        {"starts": integers(-3, 9, T), "ends": integers(0, 50, T), "relative": True, "selected": True},
    ),
    "select ids": lambda: (
        "select",
        (normal(T, 9, dtype=torch.bfloat16), 12),
        {"ids": integers(-2, 50, T, 9)},
    ),
    "score_select": lambda: (lambda args, more: ("score_select", (*args, 4), {**more, "selected": True}))(
        *_scored("index_fp8_132", "e4m3", True)
    ),
    "score_select rows": lambda: (lambda args, more: ("score_select", (*args, 3), more))(*_scored_rows()),
    "score_select_blocks": lambda: (
        lambda args, more: (
            "score_select_blocks",
            (*args, 4),
            {
                **more,
                "block_size": 2,
                "blocks": integers(-1, 9, T, 5),
                "selected": True,
                "block_maxima": True,
                "best_blocks": True,
                "keep": 3,
            },
        )
    )(*_scored("index_fp8_132", "e4m3", True)),
    "map": lambda: (
        "map",
        (integers(-2, 14, T, K), integers(0, 2, T), integers(0, 9, 2, 4)),
        {"page_tokens": 3, "page_rows": 5},
    ),
    "map pools": lambda: (
        "map",
        (integers(-2, 6, T, K), integers(0, 2, T), integers(0, 9, 2, 6)),
        {"page_tokens": 3, "pool_tokens": 2, "visible_tokens": integers(0, 14, T)},
    ),
    "attend": lambda: ("attend", *_attend()),
    "attend all": lambda: ("attend", *_attend_all()),
    "attend to another writer's records": lambda: (
        "attend",
        (normal(T, H, 512), written_cache(), rows()),
        {"softmax_scale": 0.1},
    ),
    "merge": lambda: ("merge", (normal(3, T, H, W), normal(3, T, H)), {"sink": normal(H), "lse_out": True}),
}


def bound(case):
    """A function of smla.torch and its arguments by name."""
    name, args, more = CASES[case]()
    call = getattr(smla.torch, name)
    return call, inspect.signature(call).bind(*args, **more).arguments


def compiled(function, backend="aot_eager", **more):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend=backend, **more)


def array_of(value):
    return value.array if isinstance(value, smla.Cache) else value


class Calls(TorchDispatchMode):
    """Records the operators of smla that are called. Those that write are not run: else opcheck's run would
    write nothing new, and opcheck would see no change.
    """

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "smla":
            self.found.append((function, args, kwargs or {}))
            if not function._schema.returns:
                return None
        return function(*args, **(kwargs or {}))


def recorded(name, args, more):
    """(operator, arguments, keywords) of the one call of an operator."""
    with Calls() as calls:
        getattr(smla.torch, name)(*args, **more)
    assert len(calls.found) == 1
    return calls.found[0]
