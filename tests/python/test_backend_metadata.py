"""Metadata of attention backends, field by field, against plain computations."""

import numpy as np
import pytest
import smla
from backend_world import KINDS, PUBLISHED, World, options_of
from golden_files import worst


def expected_fields(world):
    """The fields that every backend's metadata has."""
    request = np.zeros(world.tokens, int)
    request[: world.used] = world.request
    group = world.group if world.latent else world.entries
    slots = np.full(world.tokens, -1)
    slots[: world.used] = world.slots
    decodes = next((r for r, n in enumerate(world.lengths) if n > 2), world.requests)
    split = [decodes, world.requests - decodes, world.starts[decodes], world.used - world.starts[decodes]]
    out = {
        "num_reqs": [world.requests],
        "num_actual_tokens": [world.tokens],
        "max_query_len": [world.lengths.max()],
        "max_seq_len": [world.seq_lens.max()],
        "query_start_loc": world.starts,
        "seq_lens": world.seq_lens,
        "plan.batch_split": split,
    }
    if world.latent:
        out |= {"slot_mapping": slots, "block_size": [group.page], "topk_tokens": [world.options["topk"]]}
        out |= {"block_table": group.table, "req_id_per_token": request}
    else:
        out |= expected_window_fields(world, split, request, slots)
    prefix = world.seq_lens - world.lengths
    if world.name == "FLASHMLA_SPARSE":
        first, lengths = world.starts[decodes:] - world.starts[decodes], world.lengths[decodes:]
        out |= {
            "prefill.context_lens": prefix[decodes:],
            "prefill.has_context": [int((prefix[decodes:] > 0).any())],
            "prefill.block_table": group.table[decodes:],
            "prefill_context_lengths": np.repeat(prefix[decodes:], lengths),
            "prefill_new_k_start_locs": first,
            "topk_tokens_tensor": [world.options["topk"]],
            "max_model_len_tensor": [300],
        }
    if world.name == "FLASHINFER_MLA_SPARSE_DSV4":
        out |= {
            "decode_cum_seq_lens_q": world.starts[: decodes + 1],
            "prefill_cum_seq_lens_q": world.starts[decodes:] - world.starts[decodes],
            "decode_max_q_len": [world.lengths[:decodes].max(initial=0)],
            "prefill_max_q_len": [world.lengths[decodes:].max(initial=0)],
        }
    return out


def expected_window_fields(world, split, request, slots):
    decodes, prefills, decode_tokens, prefill_tokens = split
    window, ratio = world.options["window"], world.options["ratio"]
    rows, lens = np.full((world.tokens, window), -1), np.zeros(world.tokens, int)
    for t in np.flatnonzero(world.valid):
        near = np.arange(max(0, world.position[t] + 1 - window), world.position[t] + 1)
        rows[t, : len(near)], lens[t] = world.group.rows(world.request[t], near), len(near)
    prefix, valid = world.seq_lens - world.lengths, np.zeros(world.tokens, int)
    valid[: world.used] = world.valid
    names = ("num_decodes", "num_prefills", "num_decode_tokens", "num_prefill_tokens")
    out = {
        **{f"swa.{name}": [value] for name, value in zip(names, split)},
        "swa.block_size": [world.group.page],
        "swa.window_size": [window],
        "swa.block_table": world.group.table,
        "swa.slot_mapping": slots,
        "swa.token_to_req_indices": request,
        "swa.is_valid_token": valid,
        "swa.decode_swa_indices": rows[:decode_tokens, None],
        "swa.decode_swa_lens": lens[:decode_tokens],
        "swa.prefill_swa_indices": rows[decode_tokens : decode_tokens + prefill_tokens],
        "swa.prefill_swa_lens": lens[decode_tokens : decode_tokens + prefill_tokens],
        "swa.prefill_seq_lens": world.seq_lens[decodes:],
        "swa.prefill_gather_lens": (world.lengths + np.minimum(prefix, window - 1))[decodes:],
    }
    if not ratio:
        return out
    closed = np.full(world.tokens, -1)
    visible = np.zeros(world.tokens, int)
    visible[: world.used] = np.where(world.valid, (world.position + 1) // ratio, 0)
    for t in np.flatnonzero(world.valid & ((world.position + 1) % ratio == 0)):
        closed[t] = world.entries.rows(world.request[t], visible[t] - 1)
    out |= {"slot_mapping": closed, "block_table": world.entries.table, "req_id_per_token": request}
    out |= {"block_size": [world.entries.page * ratio]}
    if ratio == 128:
        local = np.where(np.arange(128) < visible[:, None], np.arange(128), -1)
        global_rows = np.full(local.shape, -1)
        for t in np.flatnonzero(visible):
            global_rows[t, : visible[t]] = world.entries.rows(request[t], np.arange(visible[t]))
        out["c128a_global_decode_topk_indices"] = global_rows[:decode_tokens, None]
        out["c128a_decode_topk_lens"] = visible[:decode_tokens]
        out["c128a_prefill_topk_indices"] = local[decode_tokens : decode_tokens + prefill_tokens]
    return out


def columns(world, field):
    """Pages of the longest request in a table."""
    per_token = world.latent or field.startswith("swa.")
    group = world.group if per_token else world.entries
    rows = (
        world.options["max_seq_len"]
        if per_token
        else -(-world.options["max_seq_len"] // world.options["ratio"])
    )
    return -(-rows // group.page)


@pytest.mark.parametrize("name,ratio", KINDS)
def test_fields_of_metadata(name, ratio):
    """One Metadata for many steps: buffers do not move, and nothing of the last step is left."""
    shared, places = None, {}
    for seed in range(8):
        world = World(name, options_of(name, ratio), seed, invalid=seed % 2 == 1)
        shared = world.metadata if shared is None else shared
        world.build(shared)
        for field, wanted in expected_fields(world).items():
            got = shared.field(field)
            if "block_table" in field:  # a copy, which ends at max_seq_len
                wanted = wanted[:, : columns(world, field)]
            assert np.array_equal(got, np.asarray(wanted)), (field, seed)
            if "block_table" not in field and got.size:
                address = got.__array_interface__["data"][0]
                assert places.setdefault(field, address) == address, field
        assert set(expected_fields(world)) <= set(shared.fields)


def test_more_groups_bring_the_indexers_fields():
    options = options_of("TRITON_MLA_SPARSE", page_tokens=16, plan_groups=["index"], max_logits_bytes=400)
    metadata = smla.Backend("TRITON_MLA_SPARSE", **options).metadata()
    table = np.arange(40, dtype=np.int32).reshape(2, 20)
    groups = {
        "primary": smla.PlanGroup(table, page_tokens=16),
        "index": smla.PlanGroup(table, page_tokens=16),
    }
    metadata.build(np.int32([0, 10, 30]), np.int32([10, 40]), **groups)
    chunks = smla.rows.prefill_chunks(
        np.int32([0, 10, 30]), np.int32([10, 40]), max_rows=40 * 300, max_logits_bytes=400
    )
    assert np.array_equal(metadata.field("indexer.prefill_chunks"), chunks) and len(chunks) > 2
    assert metadata.field("plan.ragged_cu").tolist() == [0, 10, 50]
    with pytest.raises(smla.InvalidArgument, match="batch.index"):
        metadata.build(np.int32([0, 10, 30]), np.int32([10, 40]), primary=groups["primary"])


def test_an_fp8_cache_brings_a_decode_schedule():
    """All tokens of a step are one request of the kernel."""
    options = {**options_of("FLASHMLA_SPARSE"), **PUBLISHED, "kv_cache_dtype": "fp8_ds_mla", "topk": 2048}
    device = {"type": "cpu", "multiprocessors": 132}
    metadata = smla.Backend("FLASHMLA_SPARSE", **options, device=device).metadata()
    table = np.zeros((1, 5), np.int32)
    metadata.build(np.int32([0, 3]), np.int32([200]), primary=smla.PlanGroup(table, page_tokens=64))
    schedule = metadata.field("fp8_extra_metadata.scheduler_metadata")
    wanted, splits = smla.rows.decode_schedule(np.int32([2048]), len(schedule))
    assert len(schedule) == 132 // 2 // 3 and np.array_equal(schedule, wanted)
    assert np.array_equal(metadata.field("fp8_extra_metadata.num_splits"), splits)
    assert metadata.field("fp8_extra_metadata.cache_lens").tolist() == [300]


def test_block_tables_are_copies():
    """The caller may change a table after build(), and a view of the copy outlives the metadata."""
    options = options_of("SPARSE_MLA_SM120", page_tokens=1)
    metadata = smla.Backend("SPARSE_MLA_SM120", **options).metadata()
    for first in range(30):
        table = np.arange(first, first + 4096, dtype=np.int32).reshape(1, 4096)
        metadata.build(np.int32([0, 1]), np.int32([9]), primary=smla.PlanGroup(table, page_tokens=1))
        table[:] = -7
        view = metadata.field("block_table")
        assert np.array_equal(view[0], first + np.arange(options["max_seq_len"]))
    del metadata
    assert np.array_equal(view[0], 29 + np.arange(options["max_seq_len"]))


def test_tables_that_are_views():
    options = options_of("SPARSE_MLA_SM120", page_tokens=1)
    metadata = smla.Backend("SPARSE_MLA_SM120", **options).metadata()
    wide = np.arange(2 * 20, dtype=np.int32).reshape(2, 20)
    group = smla.PlanGroup(wide[:, 3:12], page_tokens=1)
    metadata.build(np.int32([0, 2, 3]), np.int32([5, 9]), primary=group)
    assert np.array_equal(metadata.field("block_table"), wide[:, 3:12])
    assert metadata.field("slot_mapping").tolist() == [6, 7, 31]


def test_metadata_refusals():
    backend = smla.Backend("TRITON_MLA_SPARSE", **options_of("TRITON_MLA_SPARSE"))
    world = World("TRITON_MLA_SPARSE", options_of("TRITON_MLA_SPARSE"), 0)
    other = World("SPARSE_MLA_SM120", options_of("SPARSE_MLA_SM120"), 0)
    for text, metadata in {
        "metadata that was never built": backend.metadata(),
        "of TRITON_MLA_SPARSE": other.metadata,
    }.items():
        with pytest.raises(smla.InvalidArgument, match=text):
            world.backend.forward(metadata, **world.arguments)
    with pytest.raises(smla.InvalidArgument, match="one of num_reqs"):
        world.metadata.field("num_requests")
    before = world.metadata.field("seq_lens").copy()
    with pytest.raises(smla.InvalidArgument, match=r"batch.seq_lens\[0\]"):
        world.metadata.build(world.starts, np.full_like(world.seq_lens, 301))
    with pytest.raises(smla.InvalidArgument, match="groups: got 'kv'"):
        world.metadata.build(world.starts, world.seq_lens, kv=world.group.plan_group())
    assert np.array_equal(world.metadata.field("seq_lens"), before)
    out = world.forward()
    assert worst(out[: world.tokens], world.wanted()[0]) < 2e-5
