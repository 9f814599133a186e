"""Names, schedules and refusals of smla.compat.deep_gemm."""

import inspect

import pytest

torch = pytest.importorskip("torch")

import smla
from deep_gemm_world import E4M3, HIGHEST, HOSTILE, Rows, dense_case, i32, on_devices, paged_case, refuses
from smla.compat import deep_gemm as dg

PARAMETERS = {
    "fp8_fp4_mqa_logits": "q kv weights cu_seq_len_k_start cu_seq_len_k_end clean_logits=True max_seqlen_k=0 "
    "logits_dtype=torch.float32",
    "fp8_fp4_paged_mqa_logits": "q kv_cache weights context_lens block_table schedule_meta max_context_len "
    "clean_logits=False logits_dtype=torch.float32 indices=None",
    "fp8_mqa_logits": "q kv weights cu_seq_len_k_start cu_seq_len_k_end clean_logits=True max_seqlen_k=0",
    "fp8_paged_mqa_logits": "q kv_cache weights context_lens block_table schedule_meta max_context_len "
    "clean_logits=False indices=None",
    "get_paged_mqa_logits_metadata": "context_lens block_kv num_sms indices=None",
    "get_num_sms": "",
    "set_num_sms": "new_num_sms",
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_names_order_and_defaults(name):
    found = inspect.signature(getattr(dg, name)).parameters.values()
    words = [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in found]
    assert " ".join(words) == PARAMETERS[name]
    assert name in dg.__all__ and len(dg.__all__) == len(PARAMETERS)


def check_schedule(found, units, end, parts, last_get_more=True):
    """units: (atom, split) of all work, in order, of which each multiprocessor takes the next few."""
    assert found.dtype is torch.int32 and found.shape == (parts + 1, 2)
    few, more = divmod(len(units), parts)
    sizes = [few] * (parts - more) + [few + 1] * more
    sizes = sizes if last_get_more else sizes[::-1]
    begins = [sum(sizes[:i]) for i in range(parts + 1)]
    assert found.tolist() == [list((units + [(end, 0)])[begin]) for begin in begins]


def units_of(lens, atoms=1):
    splits = [-(-max(n, 0) // 256) for n in lens]
    return [(b * atoms + a, s) for b, n in enumerate(splits) for a in range(atoms) for s in range(n)]


LENS = [[1000, 3, 0, 256, 257, 70000], [0, 0, 0], [5], [0, 513], [512, 0, 0], [-1000, 300, -7], []]


@on_devices
@pytest.mark.parametrize("parts", [1, 2, 7, 132])
@pytest.mark.parametrize("lens", LENS)
def test_schedule(lens, parts, device):
    last = device == "cpu" or torch.cuda.get_device_capability()[0] < 10
    found = dg.get_paged_mqa_logits_metadata(i32(lens).to(device), 64, parts)
    assert found.device.type == device
    check_schedule(found, units_of(lens), len(lens), parts, last)
    for next_n in (1, 2, 3, 6):
        rows = torch.randint(0, 5000, (len(lens), next_n), dtype=torch.int32)
        rows[:, -1] = i32(lens)
        atoms = (next_n + 1) // 2
        found = dg.get_paged_mqa_logits_metadata(rows.to(device), 64, parts)
        check_schedule(found, units_of(lens, atoms), len(lens) * atoms, parts, last)


def test_schedule_of_long_keys():
    lens = [HIGHEST, HIGHEST - 255, 1]
    found = dg.get_paged_mqa_logits_metadata(i32(lens), 64, 2).tolist()
    splits = [2**23, 2**23, 1]
    half = sum(splits) // 2
    assert found == [[0, 0], [1, half - splits[0]], [3, 0]]


@pytest.mark.parametrize(
    "indices", [[0, 1, 2, 3, 4, 5], [7, 7, 7, 7, 7, 7], [1, 1, 0, 0, 0, 1], [2, 5, 5, 2, 2, 2]]
)
def test_schedule_of_pairs(indices):
    lens = [300, 1000, 0, 256, 600, 257]
    units, t = [], 0
    while t < 6:
        pair = t + 1 < 6 and indices[t] == indices[t + 1]
        units += [(t, s) for s in range(-(-lens[t + pair] // 256))]
        t += 1 + pair
    for shape in ((6,), (6, 1)):
        found = dg.get_paged_mqa_logits_metadata(i32(lens).view(shape), 64, 5, i32(indices))
        check_schedule(found, units, 6, 5)
    none = dg.get_paged_mqa_logits_metadata(i32([]), 64, 5, i32([]))
    check_schedule(none, [], 0, 5)


def test_schedule_where_the_first_get_more(monkeypatch):
    monkeypatch.setattr(dg, "_first_get_more", lambda device: True)
    for lens in LENS:
        for parts in (1, 2, 7, 132):
            found = dg.get_paged_mqa_logits_metadata(i32(lens), 64, parts)
            check_schedule(found, units_of(lens), len(lens), parts, last_get_more=False)


def test_num_sms():
    own = dg.get_num_sms()
    try:
        assert own >= 1
        dg.set_num_sms(1)
        assert dg.get_num_sms() == 1
        dg.set_num_sms(0)
        assert dg.get_num_sms() == own
        for bad, got in ((-1, "-1"), (2.0, "2.0"), (None, "None")):
            with pytest.raises(smla.InvalidArgument) as error:
                dg.set_num_sms(bad)
            assert (error.value.field, error.value.got) == ("new_num_sms", got)
    finally:
        dg.set_num_sms(0)


def wrong_dense():
    q, k, w, starts, ends = dense_case()
    good = dict(q=q.given, kv=k.given, weights=w, cu_seq_len_k_start=starts, cu_seq_len_k_end=ends)
    q4 = Rows((len(HOSTILE), 5, 128), "fp4", 0)
    yield "q", good | {"q": q.codes}
    yield "q", good | {"q": (q.codes,)}
    yield "q", good | {"q": ([1.0], None)}
    yield "q.shape", good | {"q": (q.codes[0], None)}
    yield "q.dtype", good | {"q": (q.codes.float(), None)}
    yield "q.shape", good | {"q": (torch.zeros((len(HOSTILE), 5, 256)).to(E4M3), None)}
    yield "q.shape", good | {"q": (q4.codes[..., :24], q4.scales)}
    yield "q_sf", good | {"q": (q.codes, q4.scales)}
    yield "q_sf", good | {"q": (q4.codes, None)}
    yield "q_sf.dtype", good | {"q": (q4.codes, q4.scales.float())}
    yield "q_sf.shape", good | {"q": (q4.codes, q4.scales[:, :4])}
    yield "kv", good | {"kv": k.codes}
    yield "kv", good | {"kv": (None, k.scales)}
    yield "kv.shape", good | {"kv": (k.codes[:, :64], k.scales)}
    yield "kv.dtype", good | {"kv": (k.codes.float(), k.scales)}
    yield "kv_sf", good | {"kv": (k.codes, None)}
    yield "kv_sf.dtype", good | {"kv": (k.codes, k.scales.view(torch.int32))}
    yield "kv_sf.shape", good | {"kv": (k.codes, k.scales[:, None])}
    yield "kv.device", good | {"kv": (k.codes.to("meta"), k.scales.to("meta"))}
    yield "kv_sf.device", good | {"kv": (k.codes, k.scales.to("meta"))}
    yield "weights.shape", good | {"weights": w[:, :4]}
    yield "weights.dtype", good | {"weights": w.double()}
    yield "weights.device", good | {"weights": w.to("meta")}
    yield "cu_seq_len_k_start.shape", good | {"cu_seq_len_k_start": starts[1:]}
    yield "cu_seq_len_k_start.dtype", good | {"cu_seq_len_k_start": starts.long()}
    yield "cu_seq_len_k_end.dtype", good | {"cu_seq_len_k_end": ends.float()}
    yield "max_seqlen_k", good | {"max_seqlen_k": -1}
    yield "max_seqlen_k", good | {"max_seqlen_k": 2.5}
    yield "logits_dtype", good | {"logits_dtype": torch.float16}


@pytest.mark.parametrize("field, arguments", list(wrong_dense()))
def test_refusals_of_dense(field, arguments):
    refuses(field, dg.fp8_fp4_mqa_logits, **arguments)


def wrong_paged():
    good, *_ = paged_case(lens=[[130, 9], [7, 7], [64, 64]])
    cache = good["kv_cache"]
    yield "kv_cache.shape", good | {"kv_cache": cache[..., :131]}
    yield "kv_cache.shape", good | {"kv_cache": cache.expand(-1, -1, 2, -1)}
    yield "kv_cache.dtype", good | {"kv_cache": torch.zeros((6, 64, 1, 132))}
    wide = torch.zeros((6, 64, 1, 264), dtype=torch.uint8)
    yield "kv_cache.stride", good | {"kv_cache": wide[..., :132]}
    narrow = Rows((3, 2, 3, 64), "fp8", 0).codes
    yield "kv_cache.stride", good | {"q": (narrow, None), "kv_cache": wide[..., :68]}
    odd = wide.flatten().as_strided((6, 64, 1, 132), (8449, 132, 132, 1))
    yield "cache.page_stride_bytes", good | {"kv_cache": odd}
    yield "kv_cache", good | {"kv_cache": None}
    yield "weights.shape", good | {"weights": good["weights"].view(3, 2, -1)}
    yield "context_lens.shape", good | {"context_lens": good["context_lens"][:, :1]}
    yield "context_lens.shape", good | {"context_lens": good["context_lens"].flatten()}
    yield "context_lens.dtype", good | {"context_lens": good["context_lens"].long()}
    yield "context_lens", good | {"context_lens": [130, 7, 64]}
    yield "block_table.shape", good | {"block_table": good["block_table"][:2]}
    yield "block_table.dtype", good | {"block_table": good["block_table"].long()}
    yield "max_context_len", good | {"max_context_len": good["context_lens"]}
    yield "max_context_len", good | {"max_context_len": -1}
    yield "indices", good | {"indices": i32([0, 0, 1])}
    yield "indices.shape", good | {"indices": i32([0, 0])}
    yield "logits_dtype", good | {"logits_dtype": "float32"}


@pytest.mark.parametrize("field, arguments", list(wrong_paged()))
def test_refusals_of_paged(field, arguments):
    refuses(field, dg.fp8_fp4_paged_mqa_logits, **arguments)


def test_refusals_of_schedules():
    lens, call = i32([[3, 4], [5, 6]]), dg.get_paged_mqa_logits_metadata
    refuses("context_lens", call, [3], 64, 132)
    refuses("context_lens.dtype", call, lens.long(), 64, 132)
    refuses("context_lens.shape", call, lens[None], 64, 132)
    refuses("context_lens.shape", call, lens[:, :0], 64, 132)
    refuses("block_kv", call, lens, 0, 132)
    refuses("num_sms", call, lens, 64, 0)
    refuses("indices", call, lens, 64, 132, i32([0, 0]))
    refuses("indices.shape", call, lens[:, 0], 64, 132, i32([0]))


def test_legacy_calls_refuse_alike():
    arguments, q, _ = paged_case()
    arguments["q"] = q.codes
    refuses("indices.shape", dg.fp8_paged_mqa_logits, **arguments, indices=i32([0]))
    refuses("q_sf", dg.fp8_paged_mqa_logits, **arguments | {"q": Rows((3, 1, 3, 128), "fp4", 0).codes})
    q, k, w, starts, ends = dense_case("fp4")
    refuses("q_sf", dg.fp8_mqa_logits, q.codes, k.given, w, starts, ends)


def test_grad_is_refused():
    q, k, w, starts, ends = dense_case()
    with pytest.raises(smla.Unsupported):
        dg.fp8_mqa_logits(q.codes, k.given, w.requires_grad_(), starts, ends)
    with torch.no_grad():
        dg.fp8_mqa_logits(q.codes, k.given, w, starts, ends)
