"""Plans against a plain computation of their fields (include/smla/plan.h), token by token."""

import gc
import weakref

import numpy as np
import pytest
import smla
from smla import _views

INT32_MAX = 2**31 - 1
PER_TOKEN = {  # of a token that belongs to no request; those that are not here hold 0
    name: -1
    for name in (
        "primary_slot",
        "window_slot",
        "compressed_slot",
        "state_slot",
        "index_slot",
        "index_state_slot",
        "window_rows",
        "entry_rows",
    )
}


def ceil_div(a, b):
    return (a + b - 1) // b


def row_of(group, request, place):
    """The row of a token (or entry) of a request; -1 for blocks that are none and rows past int32."""
    block = int(group.block_table[request, place // group.page_tokens])
    row = block * (group.page_rows or group.page_tokens) + place % group.page_tokens
    return row if block >= 0 and row <= INT32_MAX else -1


class Step:
    """A random batch for a plan of these groups."""

    def __init__(self, random, options, groups):
        self.options = options
        most = options["max_requests"]
        requests = int(random.choice([0, 1, most, random.integers(1, most + 1)]))
        self.lengths = random.choice([0, 1, 1, 2, 3, 30, 61], requests)
        while self.lengths.sum() > options["max_tokens"]:
            self.lengths = self.lengths // 2
        before = random.choice([0, 1, 3, 31, 126, 127], requests)
        self.seq_lens = np.minimum(before + self.lengths, options["max_seq_len"]).astype(np.int32)
        self.starts = np.cumsum([0, *self.lengths]).astype(np.int32)
        used = int(self.starts[-1])
        self.tokens = int(random.choice([used, random.integers(used, options["max_tokens"] + 1)]))
        self.rope = None
        if random.integers(2):
            kind = random.choice([np.int32, np.int64])
            self.rope = random.integers(0, 10**6, used + random.integers(3)).astype(kind)
        self.groups = {name: self._group(random, name, used) for name in groups}
        for name, group in self.groups.items():
            if group.block_table is not None:
                garbage = random.choice([-1, -(2**31), INT32_MAX])
                group.block_table[~self._needed(name, group)] = garbage

    def _padding(self, t):
        return any(g.slots is not None and g.slots[t] < 0 for g in self.groups.values())

    def _needed(self, name, group):
        """Which entries of the table must be pages: [R,MB] bool."""
        out = np.zeros(group.block_table.shape, bool)
        for request, n in enumerate(self.lengths):
            start, before = self.starts[request], self.seq_lens[request] - n
            positions = [before + i for i in range(n) if not self._padding(start + i)]
            if not positions:
                continue
            begin, end = 0, positions[-1] + 1
            if name == "window":
                begin = max(0, positions[0] + 1 - self.options["window"])
            if name in ("state", "index_state"):
                begin = positions[0] if group.slots is None else end
            if name == "compressed" or (name == "index" and "ratio" in self.options):
                end //= self.options["ratio"]
            out[request, [row // group.page_tokens for row in range(begin, end)]] = True
        return out

    def _group(self, random, name, used):
        page = int(random.choice([1, 2, 5, 64]))
        entries = name == "compressed" or (name == "index" and "ratio" in self.options)
        places = self.options["max_seq_len"] // (self.options["ratio"] if entries else 1)
        table = random.integers(0, 1000, (len(self.lengths), places // page + 2)).astype(np.int32)
        slots = None
        if not entries and random.integers(3) == 0:
            slots = random.integers(-2, 2**40, used + random.integers(3))
            if random.integers(2):
                slots = (slots % 2**20 - 2).astype(np.int32)
        rows = int(random.choice([0, page + 3]))
        if slots is not None and name != "window" and random.integers(2):
            table = None
        return smla.PlanGroup(table, slots, page, rows)

    def build(self, plan):
        tokens = self.tokens if self.tokens != self.starts[-1] else 0
        plan.build(self.starts, self.seq_lens, tokens=tokens, rope_positions=self.rope, **self.groups)


def decodes_of(lengths, speculative, uniform):
    """How many requests at the front are decodes."""
    most = 1 + speculative
    if not uniform or most == 1:
        return next((r for r, n in enumerate(lengths) if n > most), len(lengths))
    if len(lengths) and lengths[0] > most:
        return 0
    if all(n in (0, lengths[0]) for n in lengths):  # requests without tokens do not end a run of like ones
        return len(lengths)
    return next((r for r, n in enumerate(lengths) if n != lengths[0]), len(lengths))


def wanted_fields(step, fields):
    """What the fields of a plan must hold after this step."""
    options, groups = step.options, step.groups
    columns = ceil_div(ceil_div(options["max_seq_len"], options.get("ratio", 1)), 128) * 128
    out = {}
    for name in fields:
        shape = (step.tokens,)
        if name == "window_rows":
            shape = (step.tokens, options["window"])
        elif name == "entry_rows":
            shape = (step.tokens, columns)
        elif name in ("batch_split", "ragged_cu", "schedule"):
            continue
        out[name] = np.full(shape, PER_TOKEN.get(name, 0), np.int64)
    ratio, decodes = (
        options.get("ratio", 0),
        decodes_of(step.lengths, options.get("speculative_tokens", 0), options.get("uniform_decodes", False)),
    )
    prefill_at = int(step.starts[decodes])
    out["batch_split"] = np.array(
        [decodes, len(step.lengths) - decodes, prefill_at, step.starts[-1] - prefill_at], np.int64
    )
    keys = step.seq_lens // (ratio or 1)
    gathered = np.where(np.arange(len(keys)) >= decodes, keys, 0)
    cu = np.cumsum([0, *gathered])
    if "index" in groups:
        out["ragged_cu"] = cu
    for request, n in enumerate(step.lengths):
        for i in range(n):
            t = int(step.starts[request]) + i
            fill_token(step, out, t, request, int(step.seq_lens[request]) - int(n) + i)
            if "index" in groups:
                visible = out["visible_entries" if ratio else "visible_tokens"][t]
                out["score_end"][t] = visible
                out["ragged_start"][t] = cu[request]
                out["ragged_end"][t] = cu[request] + (visible if t >= prefill_at else 0)
    return out


def fill_token(step, out, t, request, position):
    """The fields of a token that do not need to know of others."""
    groups, ratio, window = step.groups, step.options.get("ratio", 0), step.options.get("window", 0)
    out["request_of_token"][t], out["position"][t] = request, position
    out["rope_position"][t] = position if step.rope is None else step.rope[t]
    valid = True
    for name in ("primary", "window", "state", "index", "index_state"):
        if name in groups and not (name == "index" and ratio):
            given = groups[name].slots
            slot = row_of(groups[name], request, position) if given is None else max(int(given[t]), -1)
            out[f"{name}_slot"][t] = slot
            valid = valid and slot >= 0
    out["is_valid"][t] = valid
    visible = position + 1 if valid else 0
    out["visible_tokens"][t] = visible
    if window:
        n = min(visible, window)
        rows = [row_of(groups["window"], request, p) for p in range(visible - n, visible)]
        out["window_rows"][t, :n], out["window_len"][t] = rows, n
    if ratio:
        entries = visible // ratio
        out["visible_entries"][t] = entries
        closes = visible > 0 and visible % ratio == 0
        for name in ("compressed", "index"):
            if name in groups and closes:
                out[f"{name}_slot"][t] = row_of(groups[name], request, entries - 1)
        if "entry_rows" in out:
            rows = [row_of(groups["compressed"], request, e) for e in range(entries)]
            out["entry_rows"][t, :entries], out["entry_len"][t] = rows, entries


PLANS = {
    "v32": (["primary", "index"], {}),
    "primary": (["primary"], {"speculative_tokens": 2}),
    "uniform": (["primary"], {"speculative_tokens": 2, "uniform_decodes": True}),
    "window": (["window"], {"window": 9}),
    "csa": (
        ["window", "compressed", "index", "state", "index_state"],
        {"window": 5, "ratio": 4, "speculative_tokens": 1},
    ),
    "hca": (["window", "compressed", "state"], {"window": 128, "ratio": 128, "list_entries": True}),
    "listed": (["window", "compressed"], {"window": 3, "ratio": 3, "list_entries": True}),
}


@pytest.mark.parametrize("kind", PLANS)
def test_every_field_of_random_steps(kind):
    """One plan for all steps: what the last one left must not show."""
    groups, more = PLANS[kind]
    options = {"max_tokens": 70, "max_requests": 5, "max_seq_len": 157, **more}
    plan, random = smla.Plan(groups, **options), np.random.default_rng(sorted(PLANS).index(kind))
    for _ in range(25):
        step = Step(random, options, groups)
        step.build(plan)
        wanted = wanted_fields(step, plan.fields)
        assert set(wanted) == set(plan.fields)
        for name, values in wanted.items():
            got = plan.field(name)
            assert got.shape == values.shape and np.array_equal(got, values), name


def test_dtypes_and_fields_of_each_kind():
    common = ["request_of_token", "position", "rope_position", "is_valid", "visible_tokens", "batch_split"]
    index = ["index_slot", "score_start", "score_end", "ragged_cu", "ragged_start", "ragged_end"]
    window = ["window_slot", "window_rows", "window_len"]
    entries = ["visible_entries", "compressed_slot"]
    listed = ["entry_rows", "entry_len"]
    for kind, wanted in {
        "v32": [*common, "primary_slot", *index],
        "window": [*common, *window],
        "csa": [*common, *window, *entries, "state_slot", "index_state_slot", *index],
        "hca": [*common, *window, *entries, *listed, "state_slot"],
    }.items():
        groups, more = PLANS[kind]
        plan = smla.Plan(groups, max_tokens=4, max_requests=2, max_seq_len=8, **more)
        assert sorted(plan.fields) == sorted(wanted)
        for name in plan.fields:
            dtype = np.uint8 if name == "is_valid" else np.int64 if name.endswith("_slot") else np.int32
            assert plan.field(name).dtype == dtype, name


@pytest.mark.parametrize(
    "topk,window,heads,workers",
    [(2048, 0, 128, 132), (2048, 0, 16, 132), (100, 0, 5, 64), (0, 128, 8, 64), (512, 128, 8, 64)],
)
def test_schedule_follows_from_the_maxima(topk, window, heads, workers):
    """Splits cover all columns, each but the last whole, and no batch moves them."""
    groups = ["window"] if window else ["primary"]
    plan = smla.Plan(
        groups,
        max_tokens=4,
        max_requests=4,
        max_seq_len=4096,
        window=window,
        topk=topk,
        heads=heads,
        workers=workers,
    )
    splits, rows = plan.field("schedule").tolist()
    columns = topk + window
    assert rows % 64 == 0 and splits >= 1 and (splits - 1) * rows < columns <= splits * rows
    assert splits == 1 or splits * 4 <= workers  # 4 tokens, a worker each at least
    table = np.zeros((4, 4096), np.int32)
    group = {groups[0]: smla.PlanGroup(table, page_tokens=1)}
    plan.build(np.int32([0, 1, 2, 3, 4]), np.int32([9, 9, 9, 9]), **group)
    assert plan.field("schedule").tolist() == [splits, rows]


def test_views_show_the_last_build_and_never_move():
    plan = smla.Plan(["primary"], max_tokens=8, max_requests=2, max_seq_len=64)
    table = np.arange(128, dtype=np.int32).reshape(2, 64)
    group = smla.PlanGroup(table, page_tokens=1)
    plan.build(np.int32([0, 3, 8]), np.int32([10, 5]), primary=group)
    slots, position = plan.field("primary_slot"), plan.field("position")
    assert slots.tolist() == [7, 8, 9, 64, 65, 66, 67, 68]
    with pytest.raises(ValueError, match="read-only"):
        position[0] = 1
    plan.build(np.int32([0, 2]), np.int32([20]), tokens=4, primary=group._replace(block_table=table[:1]))
    again = plan.field("primary_slot")
    assert again.__array_interface__["data"][0] == slots.__array_interface__["data"][0]
    assert again.tolist() == [18, 19, -1, -1]
    assert slots[:4].tolist() == [18, 19, -1, -1] and position[:4].tolist() == [18, 19, 0, 0]


def test_views_keep_the_plan_alive():
    plan = smla.Plan(["primary"], max_tokens=64, max_requests=1, max_seq_len=64)
    table = np.arange(64, dtype=np.int32)[None]
    plan.build(np.int32([0, 64]), np.int32([64]), primary=smla.PlanGroup(table, page_tokens=1))
    slots, part, alive = plan.field("primary_slot"), plan.field("position")[5:], weakref.ref(plan)
    del plan
    gc.collect()
    assert alive() and np.array_equal(slots, np.arange(64))
    del slots
    assert alive() and np.array_equal(part, np.arange(5, 64))  # a view of a view
    del part
    gc.collect()
    assert not alive()


def test_views_of_a_gpu_say_where_they_lie():
    tensor = smla._abi.Tensor(
        data=0x1000, dtype=smla._abi.Dtype.I32, ndim=2, device_type=smla._abi.DeviceType.CUDA, device_index=1
    )
    tensor.shape[:2], tensor.stride_elems[:2] = (3, 5), (8, 1)
    owner = Owner()
    alive = weakref.ref(owner)
    view = _views.view(tensor, owner)
    assert view.__cuda_array_interface__ == {
        "version": 3,
        "data": (0x1000, False),
        "shape": (3, 5),
        "strides": (32, 4),
        "typestr": "<i4",
    }
    assert (view.shape, view.dtype, view.device) == ((3, 5), np.dtype("int32"), 1)
    del owner
    assert alive() is not None and "cuda:1" in repr(view)


class Owner:
    """Owner of the memory under a view."""


@pytest.mark.gpu
@pytest.mark.parametrize("kind", PLANS)
def test_a_plan_on_a_gpu_holds_the_same(kind):
    """Built from PyTorch's tensors there, and read through views without a copy."""
    torch = pytest.importorskip("torch")
    groups, more = PLANS[kind]
    options = {"max_tokens": 70, "max_requests": 5, "max_seq_len": 157, **more}
    random, context = np.random.default_rng(3), smla.Context("cuda")
    host = smla.Plan(groups, **options)
    plan = smla.Plan(groups, **options, context=context)

    def there(array):
        return None if array is None else torch.from_numpy(np.array(array)).cuda()

    for _ in range(20):
        step = Step(random, options, groups)
        if not step.tokens:  # must be told to a GPU's plan
            continue
        step.build(host)
        placed = {
            name: group._replace(block_table=there(group.block_table), slots=there(group.slots))
            for name, group in step.groups.items()
        }
        plan.build(
            there(step.starts),
            there(step.seq_lens),
            tokens=step.tokens,
            rope_positions=there(step.rope),
            **placed,
        )
        for name in host.fields:
            if 0 not in plan.field(name).shape:
                view = torch.as_tensor(plan.field(name), device="cuda")
                np.testing.assert_array_equal(view.cpu().numpy(), host.field(name), name)
                assert view.data_ptr() == plan.field(name).__cuda_array_interface__["data"][0]


def test_tensors_of_pytorch():
    torch = pytest.importorskip("torch", reason="no PyTorch")
    plan = smla.Plan(["primary"], max_tokens=8, max_requests=2, max_seq_len=64)
    table = torch.arange(256, dtype=torch.int32).reshape(2, 128)[:, ::2]  # a view: column c is block 2c
    group = smla.PlanGroup(table.contiguous(), page_tokens=1)
    starts, lens = torch.tensor([0, 1, 3], dtype=torch.int32), torch.tensor([4, 9], dtype=torch.int32)
    plan.build(starts, lens, rope_positions=torch.tensor([5, 6, 7]), primary=group)
    assert plan.field("primary_slot").tolist() == [6, 128 + 14, 128 + 16]
    assert plan.field("rope_position").tolist() == [5, 6, 7]


# Refusals.


@pytest.mark.parametrize(
    "change,text",
    [
        ({"groups": []}, "groups"),
        ({"groups": ["secondary"]}, "groups: got 'secondary', wanted one of compressed, index"),
        ({"groups": [["primary"]]}, "groups"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2**32 + 4}, "max_tokens: got 4294967300, wanted an integer of 32 bits"),
        ({"max_requests": 2.5}, "max_requests: got 2.5, wanted an integer"),
        ({"max_seq_len": "9"}, "max_seq_len: got '9', wanted an integer"),
        ({"max_requests": -1}, "max_requests"),
        ({"window": 4}, "window"),
        ({"groups": ["window"]}, "window"),
        ({"groups": ["compressed"]}, "ratio"),
        ({"groups": ["window"], "window": 4, "ratio": 4}, "ratio"),
        ({"list_entries": True}, "list_entries"),
        ({"uniform_decodes": 2}, "uniform_decodes"),
        ({"speculative_tokens": -1}, "speculative_tokens"),
    ],
)
def test_plans_that_are_refused(change, text):
    options = {"groups": ["primary"], "max_tokens": 8, "max_requests": 2, "max_seq_len": 64, **change}
    with pytest.raises(smla.InvalidArgument, match=text):
        smla.Plan(**options)


GOOD = smla.PlanGroup(np.zeros((2, 64), np.int32), page_tokens=1)


@pytest.mark.parametrize(
    "change,text",
    [
        ({"query_start_loc": [1, 2, 3]}, r"query_start_loc\[0\]"),
        ({"query_start_loc": [0, 2, 1]}, r"query_start_loc\[2\]"),
        ({"query_start_loc": [0, 2]}, "query_start_loc"),
        ({"query_start_loc": [0, 2, 9]}, "max_tokens"),
        ({"query_start_loc": np.array([0, 1, 2], np.int64)}, "query_start_loc.dtype"),
        ({"query_start_loc": np.zeros((1, 3), np.int32)}, r"query_start_loc.shape: got \[1,3\]"),
        ({"seq_lens": [1, 0]}, r"seq_lens\[1\]"),
        ({"seq_lens": [1, 65]}, "max_seq_len"),
        ({"seq_lens": [1, 2, 3], "query_start_loc": [0, 1, 2, 3]}, "max_requests"),
        ({"tokens": 1}, "tokens"),
        ({"tokens": 9}, "tokens"),
        ({"tokens": 2**33}, "tokens"),
        ({"rope_positions": np.zeros(1, np.int32)}, "rope_positions"),
        ({"rope_positions": np.zeros(2, np.float32)}, "rope_positions.dtype"),
        ({"primary": None}, "primary.page_tokens"),
        ({"primary": 7}, "primary: got int, wanted a smla.PlanGroup"),
        ({"secondary": GOOD}, "groups: got 'secondary'"),
        ({"index": GOOD}, "index"),
        ({"primary": GOOD._replace(page_tokens=0)}, "primary.page_tokens"),
        ({"primary": GOOD._replace(page_tokens=8, page_rows=7)}, "primary.page_rows"),
        ({"primary": GOOD._replace(block_table=None)}, "primary.block_table"),
        ({"primary": GOOD._replace(block_table=np.zeros((2, 1), np.int32))}, "primary.block_table"),
        ({"primary": GOOD._replace(block_table=np.zeros((1, 64), np.int32))}, "primary.block_table"),
        ({"primary": GOOD._replace(slots=np.zeros(1, np.int32))}, "primary.slots"),
    ],
)
def test_batches_that_are_refused_change_nothing(change, text):
    plan = smla.Plan(["primary"], max_tokens=8, max_requests=2, max_seq_len=64)
    plan.build(np.int32([0, 1, 4]), np.int32([5, 3]), primary=GOOD)
    before = {name: plan.field(name).copy() for name in plan.fields}
    batch = {"query_start_loc": [0, 1, 2], "seq_lens": [2, 2], "primary": GOOD, **change}
    for name in ("query_start_loc", "seq_lens"):
        batch[name] = np.array(batch[name], np.int32) if isinstance(batch[name], list) else batch[name]
    with pytest.raises(smla.InvalidArgument, match=text):
        plan.build(**batch)
    assert all(np.array_equal(plan.field(name), values) for name, values in before.items())


def test_fields_that_there_are_not():
    plan = smla.Plan(["primary"], max_tokens=8, max_requests=2, max_seq_len=64)
    with pytest.raises(smla.InvalidArgument, match="window_rows.*request_of_token, position"):
        plan.field("window_rows")
    for name in (3, None, b"position"):
        with pytest.raises(smla.InvalidArgument, match="name: got .*, wanted a string"):
            plan.field(name)
    assert plan.field("position").shape == (0,)  # before the first build
