"""The C ABI: structs, enumerations and functions of include/smla. Made by scripts/bindings.

Pointers are addresses (c_void_p), but text is c_char_p. Do not edit: scripts/bindings write renews it.
"""
import ctypes as c
from enum import IntEnum

VERSION = 100


class Status(IntEnum):
    OK = 0
    INVALID_ARGUMENT = 1
    UNSUPPORTED = 2
    WORKSPACE_TOO_SMALL = 3
    OUT_OF_MEMORY = 4
    DEVICE_ERROR = 5
    DATA_ERROR = 6
    IO_ERROR = 7
    INTERNAL = 8
    CANCELLED = 9


class Dtype(IntEnum):
    F64 = 1
    F32 = 2
    BF16 = 3
    F16 = 4
    E4M3 = 5
    E2M1 = 6
    E8M0 = 7
    U8 = 8
    I32 = 9
    I64 = 10


class DeviceType(IntEnum):
    CPU = 0
    CUDA = 1


class Format(IntEnum):
    NONE = 0
    ROW_F64 = 1
    ROW_F32 = 2
    ROW_BF16 = 3
    FP8_656 = 4
    FP8_576 = 5
    FP8_584 = 6
    FP8_512 = 7
    FP8_528 = 8
    INDEX_FP8_132 = 9
    INDEX_MXFP4_68 = 10
    STATE_F32 = 11
    STATE_F64 = 12
    FP8_528_G32 = 13
    FP8_528_G32_SPLIT = 14
    NVFP4_288 = 15
    NVFP4_288_SPLIT = 16
    NVFP4_384 = 17
    NVFP4_352 = 18


class Writer(IntEnum):
    SCALE_FLOOR = 1
    BF16_FIRST = 2
    TIES_TO_ZERO = 4
    BF16_POOLED = 8
    FP4_VALUES = 16


class Precision(IntEnum):
    DEFAULT = 0
    EXACT = 1
    ROUNDED = 2


class Engine(IntEnum):
    AUTO = 0
    REFERENCE = 1
    CPU = 2
    CUDA = 3


class Isa(IntEnum):
    AUTO = 0
    SCALAR = 1
    AVX2 = 2
    AVX512 = 3
    AVX512_BF16 = 4
    AMX = 5
    NEON = 6


class Group(IntEnum):
    PRIMARY = 1
    WINDOW = 2
    COMPRESSED = 4
    INDEX = 8
    STATE = 16
    INDEX_STATE = 32


class Family(IntEnum):
    DSA = 0
    HYBRID = 1
    HYBRID_SHARED = 2


class Wants(IntEnum):
    ALIBI = 1
    SLIDING_WINDOW = 2
    SOFT_CAP = 4
    ENCODER = 8
    FUSED_OUTPUT_QUANT = 16


class GraphSupport(IntEnum):
    NEVER = 0
    UNIFORM_DECODE = 1
    UNIFORM_BATCH = 2
    ALWAYS = 3


class Packing(IntEnum):
    ROW = 0
    PAGE = 1


class ScaleKind(IntEnum):
    NONE = 0
    PER_CACHE = 1
    F32 = 2
    E8M0 = 3
    E4M3 = 4


class NormKind(IntEnum):
    RMS = 0
    LAYER = 1


class RopeStyle(IntEnum):
    INTERLEAVED = 0
    HALF = 1


class WeightStorage(IntEnum):
    CONVERTED = 0
    AS_STORED = 1


class LayerKind(IntEnum):
    DSA = 0
    DSA_SHARED = 1
    SLIDING = 2
    COMPRESSED_SPARSE = 3
    HEAVILY_COMPRESSED = 4
    SHARED_SPARSE = 5


class LseBase(IntEnum):
    LN = 0
    LOG2 = 1


class EmptyLse(IntEnum):
    MINUS_INF = 0
    PLUS_INF = 1


class Stage(IntEnum):
    NORM = 0
    ROPE = 1
    PROJECT = 2
    ABSORB = 3
    QUANT_INDEX_Q = 4
    WRITE_KV = 5
    WRITE_INDEX = 6
    SAVE_STATE = 7
    COMPRESS = 8
    GATHER = 9
    COPY_PAGES = 10
    SCORE = 11
    SELECT = 12
    SCORE_SELECT = 13
    MAP = 14
    ATTEND = 15
    MERGE = 16
    INVERSE_ROPE = 17
    UP_PROJECT = 18
    OUT_PROJECT = 19
    SCORE_SELECT_BLOCKS = 20
    COUNT = 21


class FieldKind(IntEnum):
    TENSOR = 0
    CACHE = 1
    NUMBER = 2


class FieldFlags(IntEnum):
    WRITTEN = 1
    OPTIONAL = 2
    ROWS = 4


class BadKind(IntEnum):
    NONE = 0
    ROW = 1
    EXTRA_ROW = 2
    LENGTH = 3
    EXTRA_LENGTH = 4
    SLOT = 5
    POSITION = 6
    REQUEST = 7
    BLOCK = 8
    TABLE_WIDTH = 9
    START = 10
    END = 11
    CU = 12
    PAGE = 13
    CANDIDATE = 14


class Error(c.Structure):
    _fields_ = (
        ("status", c.c_int32),
        ("field", c.c_char_p),
        ("got", c.c_char_p),
        ("wanted", c.c_char_p),
        ("message", c.c_char_p),
    )


class Tensor(c.Structure):
    _fields_ = (
        ("data", c.c_void_p),
        ("dtype", c.c_int32),
        ("device_type", c.c_int32),
        ("device_index", c.c_int32),
        ("ndim", c.c_int32),
        ("shape", c.c_int64 * 4),
        ("stride_elems", c.c_int64 * 4),
    )


class Cache(c.Structure):
    _fields_ = (
        ("data", c.c_void_p),
        ("format", c.c_int32),
        ("device_type", c.c_int32),
        ("device_index", c.c_int32),
        ("width", c.c_int32),
        ("page_tokens", c.c_int32),
        ("page_rows", c.c_int32),
        ("pages", c.c_int64),
        ("page_stride_bytes", c.c_int64),
        ("row_stride_bytes", c.c_int64),
        ("scale", c.c_float),
        ("writer", c.c_int32),
        ("scale_device", c.c_void_p),
    )


class Allocator(c.Structure):
    _fields_ = (
        ("alloc", c.c_void_p),
        ("free", c.c_void_p),
        ("user", c.c_void_p),
    )


class ContextArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("version", c.c_int32),
        ("engine", c.c_int32),
        ("isa", c.c_int32),
        ("threads", c.c_int32),
        ("batch_invariant", c.c_int32),
        ("kernel", c.c_char_p),
        ("allocator", Allocator),
        ("parallel_for", c.c_void_p),
        ("parallel_for_pool", c.c_void_p),
        ("check_indices", c.c_int32),
        ("device_index", c.c_int32),
    )


class Workspace(c.Structure):
    _fields_ = (
        ("data", c.c_void_p),
        ("bytes", c.c_size_t),
    )


class PlanArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("groups", c.c_int32),
        ("max_tokens", c.c_int32),
        ("max_requests", c.c_int32),
        ("max_seq_len", c.c_int32),
        ("speculative_tokens", c.c_int32),
        ("uniform_decodes", c.c_int32),
        ("window", c.c_int32),
        ("ratio", c.c_int32),
        ("list_entries", c.c_int32),
        ("topk", c.c_int32),
        ("heads", c.c_int32),
        ("workers", c.c_int32),
        ("batch_invariant", c.c_int32),
        ("allocator", Allocator),
        ("context", c.c_void_p),
    )


class PlanGroup(c.Structure):
    _fields_ = (
        ("block_table", Tensor),
        ("slots", Tensor),
        ("page_tokens", c.c_int32),
        ("page_rows", c.c_int32),
    )


class PlanBatch(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("tokens", c.c_int32),
        ("query_start_loc", Tensor),
        ("seq_lens", Tensor),
        ("rope_positions", Tensor),
        ("primary", PlanGroup),
        ("window", PlanGroup),
        ("compressed", PlanGroup),
        ("index", PlanGroup),
        ("state", PlanGroup),
        ("index_state", PlanGroup),
        ("stream", c.c_void_p),
        ("decodes", c.c_int32),
        ("decode_tokens", c.c_int32),
        ("query_tokens", c.c_int32),
        ("max_query_len", c.c_int32),
        ("max_seq_len", c.c_int32),
        ("reserved", c.c_int32),
    )


class DeviceInfo(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("type", c.c_int32),
        ("capability", c.c_int32),
        ("multiprocessors", c.c_int32),
        ("memory_bytes", c.c_int64),
    )


class BackendArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("family", c.c_int32),
        ("kv_cache_dtype", c.c_char_p),
        ("dtype", c.c_int32),
        ("wants", c.c_int32),
        ("heads", c.c_int32),
        ("kv_lora_rank", c.c_int32),
        ("rope_dim", c.c_int32),
        ("nope_dim", c.c_int32),
        ("v_head_dim", c.c_int32),
        ("head_dim", c.c_int32),
        ("page_tokens", c.c_int32),
        ("window_page_tokens", c.c_int32),
        ("topk", c.c_int32),
        ("window", c.c_int32),
        ("ratio", c.c_int32),
        ("max_tokens", c.c_int32),
        ("max_requests", c.c_int32),
        ("max_seq_len", c.c_int32),
        ("speculative_tokens", c.c_int32),
        ("plan_groups", c.c_int32),
        ("batch_invariant", c.c_int32),
        ("softmax_scale", c.c_double),
        ("q_scale", c.c_double),
        ("kv_scale", c.c_double),
        ("max_logits_bytes", c.c_int64),
        ("device", DeviceInfo),
        ("allocator", Allocator),
        ("precision", c.c_int32),
        ("reserved", c.c_int32),
    )


class BackendInfo(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("family", c.c_int32),
        ("name", c.c_char_p),
        ("kv_cache_dtype", c.c_char_p),
        ("format", c.c_int32),
        ("head_size", c.c_int32),
        ("page_tokens", c.c_int32),
        ("window_page_tokens", c.c_int32),
        ("reorder_threshold", c.c_int32),
        ("padded_heads", c.c_int32),
        ("graph_support", c.c_int32),
        ("compressed_format", c.c_int32),
    )


class CacheShape(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("dtype", c.c_int32),
        ("shape", c.c_int64 * 3),
        ("page_stride_bytes", c.c_int64),
        ("bytes", c.c_int64),
    )


class BackendForwardArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("reserved", c.c_int32),
        ("stage_budget", c.c_size_t),
        ("metadata", c.c_void_p),
        ("q", Tensor),
        ("q_pe", Tensor),
        ("k_c", Tensor),
        ("k_pe", Tensor),
        ("topk_indices", Tensor),
        ("w_uk_t", Tensor),
        ("w_uv", Tensor),
        ("sink", Tensor),
        ("out", Tensor),
        ("lse", Tensor),
        ("output_scale", Tensor),
        ("output_block_scale", Tensor),
        ("kv_cache", Cache),
        ("swa_cache", Cache),
    )


class FormatInfo(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("format", c.c_int32),
        ("name", c.c_char_p),
        ("width", c.c_int32),
        ("max_width", c.c_int32),
        ("width_multiple", c.c_int32),
        ("packing", c.c_int32),
        ("scale", c.c_int32),
        ("values_per_scale", c.c_int32),
        ("alignment_bytes", c.c_int32),
        ("token_bytes", c.c_int32),
        ("page_multiple_bytes", c.c_int32),
    )


class NormArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("kind", c.c_int32),
        ("eps", c.c_double),
        ("x", Tensor),
        ("weight", Tensor),
        ("bias", Tensor),
        ("out", Tensor),
    )


class RopeArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("style", c.c_int32),
        ("inverse", c.c_int32),
        ("first", c.c_int32),
        ("x", Tensor),
        ("positions", Tensor),
        ("frequencies", Tensor),
        ("out", Tensor),
    )


class ProjectArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("reserved", c.c_int32),
        ("x", Tensor),
        ("w", Tensor),
        ("out", Tensor),
    )


class NamedTensor(c.Structure):
    _fields_ = (
        ("name", c.c_char_p),
        ("tensor", Tensor),
    )


class LayerArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("layer", c.c_int32),
        ("checkpoint", c.c_char_p),
        ("config", c.c_char_p),
        ("activations", c.c_int32),
        ("queries", c.c_int32),
        ("weights", c.c_int32),
        ("tensor_count", c.c_int32),
        ("tensors", c.c_void_p),
        ("config_json", c.c_char_p),
    )


class LayerInfo(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("kind", c.c_int32),
        ("hidden_size", c.c_int32),
        ("heads", c.c_int32),
        ("kv_width", c.c_int32),
        ("index_width", c.c_int32),
        ("topk", c.c_int32),
        ("window", c.c_int32),
        ("ratio", c.c_int32),
        ("plan_groups", c.c_int32),
        ("weight_bytes", c.c_size_t),
        ("borrowed_bytes", c.c_size_t),
        ("entries_of", c.c_int32),
        ("selection_of", c.c_int32),
        ("candidates_of", c.c_int32),
        ("candidate_blocks", c.c_int32),
        ("index_heads", c.c_int32),
        ("index_rope_style", c.c_int32),
        ("rope_width", c.c_int32),
        ("rope_theta", c.c_double),
        ("softmax_scale", c.c_double),
    )


class AttendSource(c.Structure):
    _fields_ = (
        ("cache", Cache),
        ("rows", Tensor),
        ("lengths", Tensor),
    )


class AttendArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("precision", c.c_int32),
        ("lse_base", c.c_int32),
        ("empty_lse", c.c_int32),
        ("softmax_scale", c.c_double),
        ("softmax_scale_device", c.c_void_p),
        ("q_scale", c.c_double),
        ("q_scale_device", c.c_void_p),
        ("q", Tensor),
        ("primary", AttendSource),
        ("extra", AttendSource),
        ("sink", Tensor),
        ("out", Tensor),
        ("lse", Tensor),
        ("max_logits", Tensor),
        ("out_positions", Tensor),
        ("out_frequencies", Tensor),
    )


class MergeArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("lse_base", c.c_int32),
        ("partials", Tensor),
        ("lse", Tensor),
        ("sink", Tensor),
        ("out", Tensor),
        ("lse_out", Tensor),
    )


class WriteArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("hadamard", c.c_int32),
        ("head", Tensor),
        ("tail", Tensor),
        ("slots", Tensor),
        ("cache", Cache),
        ("norm_kind", c.c_int32),
        ("rope_style", c.c_int32),
        ("rope_first", c.c_int32),
        ("reserved", c.c_int32),
        ("eps", c.c_double),
        ("norm_weight", Tensor),
        ("norm_bias", Tensor),
        ("positions", Tensor),
        ("frequencies", Tensor),
        ("values", Tensor),
    )


class SaveStateArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("reserved", c.c_int32),
        ("kv", Tensor),
        ("score", Tensor),
        ("ape", Tensor),
        ("positions", Tensor),
        ("slots", Tensor),
        ("state", Cache),
    )


class CompressArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("ratio", c.c_int32),
        ("hadamard", c.c_int32),
        ("no_overlap", c.c_int32),
        ("eps", c.c_double),
        ("state", Cache),
        ("state_table", Tensor),
        ("request_of_token", Tensor),
        ("positions", Tensor),
        ("slots", Tensor),
        ("norm_weight", Tensor),
        ("frequencies", Tensor),
        ("cache", Cache),
        ("entries", Tensor),
        ("latents", Tensor),
    )


class GatherArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("raw", c.c_int32),
        ("cache", Cache),
        ("block_table", Tensor),
        ("starts", Tensor),
        ("cu", Tensor),
        ("out", Tensor),
        ("scales", Tensor),
    )


class CopyPagesArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("reserved", c.c_int32),
        ("source", Cache),
        ("target", Cache),
        ("pairs", Tensor),
    )


class MapArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("page_tokens", c.c_int32),
        ("page_rows", c.c_int32),
        ("pool_tokens", c.c_int32),
        ("positions", Tensor),
        ("request_of_token", Tensor),
        ("block_table", Tensor),
        ("rows", Tensor),
        ("counts", Tensor),
        ("lengths", Tensor),
        ("limits", Tensor),
        ("visible_tokens", Tensor),
    )


class QuantIndexQArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("hadamard", c.c_int32),
        ("amax_floor", c.c_double),
        ("factor", c.c_double),
        ("q", Tensor),
        ("w", Tensor),
        ("q_out", Tensor),
        ("scales", Tensor),
        ("w_out", Tensor),
        ("rope_style", c.c_int32),
        ("rope_first", c.c_int32),
        ("positions", Tensor),
        ("frequencies", Tensor),
        ("rotated", Tensor),
    )


class ScoreArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("fill", c.c_int32),
        ("q", Tensor),
        ("q_scales", Tensor),
        ("w", Tensor),
        ("keys", Cache),
        ("block_table", Tensor),
        ("request_of_token", Tensor),
        ("starts", Tensor),
        ("ends", Tensor),
        ("logits", Tensor),
        ("precision", c.c_int32),
        ("reserved", c.c_int32),
    )


class SelectArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("relative", c.c_int32),
        ("scores", Tensor),
        ("ids", Tensor),
        ("starts", Tensor),
        ("ends", Tensor),
        ("indices", Tensor),
        ("selected", Tensor),
        ("counts", Tensor),
        ("rows", Tensor),
        ("row_table", Tensor),
        ("request_of_token", Tensor),
        ("page_tokens", c.c_int32),
        ("page_rows", c.c_int32),
    )


class ScoreSelectArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("columns", c.c_int32),
        ("score", ScoreArgs),
        ("select", SelectArgs),
    )


class ScoreSelectBlocksArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("columns", c.c_int32),
        ("block_size", c.c_int32),
        ("relative", c.c_int32),
        ("q", Tensor),
        ("q_scales", Tensor),
        ("w", Tensor),
        ("keys", Cache),
        ("block_table", Tensor),
        ("request_of_token", Tensor),
        ("starts", Tensor),
        ("ends", Tensor),
        ("blocks", Tensor),
        ("indices", Tensor),
        ("selected", Tensor),
        ("counts", Tensor),
        ("block_maxima", Tensor),
        ("best_blocks", Tensor),
    )


class StageField(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("kind", c.c_int32),
        ("name", c.c_char_p),
        ("shape", c.c_char_p),
        ("offset", c.c_size_t),
        ("types", c.c_uint32),
        ("flags", c.c_int32),
        ("in_place_of", c.c_int32),
        ("with_cache", c.c_int32),
        ("double_as", c.c_int32),
        ("given_with", c.c_int32),
        ("given_dtype", c.c_int32),
        ("reserved", c.c_int32),
    )


class ErrorWord(c.Structure):
    _fields_ = (
        ("kind", c.c_int32),
        ("stage", c.c_int32),
        ("token", c.c_int64),
        ("column", c.c_int64),
        ("value", c.c_int64),
    )


class LayerCache(c.Structure):
    _fields_ = (
        ("cache", Cache),
        ("block_table", Tensor),
    )


class LayerStep(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("max_columns", c.c_int32),
        ("plan", c.c_void_p),
        ("hidden", Tensor),
        ("out", Tensor),
        ("forced_topk", Tensor),
        ("topk", Tensor),
        ("primary", LayerCache),
        ("window", LayerCache),
        ("compressed", LayerCache),
        ("index", LayerCache),
        ("state", LayerCache),
        ("index_state", LayerCache),
        ("candidates", Tensor),
        ("best_blocks", Tensor),
    )


class SessionArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("kv_format", c.c_int32),
        ("index_format", c.c_int32),
        ("page_tokens", c.c_int32),
        ("max_requests", c.c_int32),
        ("max_tokens", c.c_int32),
        ("max_step_tokens", c.c_int32),
        ("kv_scale", c.c_float),
        ("stage_budget", c.c_size_t),
        ("rewind_tokens", c.c_int32),
        ("kv_writer", c.c_int32),
        ("entries_of", c.c_void_p),
    )


class StepRequest(c.Structure):
    _fields_ = (
        ("request", c.c_int32),
        ("tokens", c.c_int32),
    )


class SessionStep(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("request_count", c.c_int32),
        ("requests", c.c_void_p),
        ("hidden", Tensor),
        ("out", Tensor),
        ("rope_positions", Tensor),
        ("forced_topk", Tensor),
        ("candidates", Tensor),
    )


class RequestRowsArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("page_tokens", c.c_int32),
        ("page_rows", c.c_int32),
        ("compact", c.c_int32),
        ("ranks", c.c_int32),
        ("rank", c.c_int32),
        ("interleave", c.c_int32),
        ("reserved", c.c_int32),
        ("positions", Tensor),
        ("request_of_token", Tensor),
        ("block_table", Tensor),
        ("is_valid", Tensor),
        ("workspace_of_token", Tensor),
        ("workspace_starts", Tensor),
        ("rows", Tensor),
        ("counts", Tensor),
    )


class SplitContextArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("reserved", c.c_int32),
        ("positions", Tensor),
        ("context_lens", Tensor),
        ("context_rows", Tensor),
        ("new_rows", Tensor),
    )


class CombinedRowsArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("window", c.c_int32),
        ("ratio", c.c_int32),
        ("topk", c.c_int32),
        ("stride", c.c_int32),
        ("entries", c.c_int32),
        ("selected", Tensor),
        ("query_start_loc", Tensor),
        ("seq_lens", Tensor),
        ("gather_lens", Tensor),
        ("rows", Tensor),
        ("lens", Tensor),
    )


class MixedRowsArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("window", c.c_int32),
        ("ratio", c.c_int32),
        ("topk", c.c_int32),
        ("local", c.c_int32),
        ("window_page_tokens", c.c_int32),
        ("window_page_rows", c.c_int32),
        ("entry_page_tokens", c.c_int32),
        ("entry_page_rows", c.c_int32),
        ("reserved", c.c_int32),
        ("decode_window_rows", Tensor),
        ("decode_entries", Tensor),
        ("decode_lens", Tensor),
        ("is_valid", Tensor),
        ("prefill_entries", Tensor),
        ("query_start_loc", Tensor),
        ("seq_lens", Tensor),
        ("request_of_token", Tensor),
        ("window_table", Tensor),
        ("entry_table", Tensor),
        ("rows", Tensor),
        ("lens", Tensor),
    )


class DecodeScheduleArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("reserved", c.c_int32),
        ("lens", Tensor),
        ("schedule", Tensor),
        ("splits", Tensor),
    )


class PrefillChunksArgs(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("ratio", c.c_int32),
        ("max_rows", c.c_int64),
        ("max_logits_bytes", c.c_int64),
        ("first_request", c.c_int32),
        ("max_requests", c.c_int32),
        ("query_start_loc", Tensor),
        ("seq_lens", Tensor),
        ("chunks", Tensor),
        ("count", c.c_int32),
        ("reserved", c.c_int32),
    )


# name: (result, {parameter: type})
FUNCTIONS: dict[str, tuple[type | None, dict[str, type]]] = {
    "smla_version": (c.c_int32, {}),
    "smla_last_error": (c.c_char_p, {}),
    "smla_last_error_info": (None, {"out": c.c_void_p}),
    "smla_status_name": (c.c_char_p, {"status": c.c_int32}),
    "smla_context_create": (c.c_int32, {"args": c.c_void_p, "out": c.c_void_p}),
    "smla_context_destroy": (None, {"context": c.c_void_p}),
    "smla_context_description": (c.c_char_p, {"context": c.c_void_p}),
    "smla_context_device": (c.c_int32, {"context": c.c_void_p, "device_type": c.c_void_p,
        "device_index": c.c_void_p}),
    "smla_allocate": (c.c_int32, {"context": c.c_void_p, "bytes": c.c_size_t, "out": c.c_void_p}),
    "smla_release": (None, {"context": c.c_void_p, "memory": c.c_void_p}),
    "smla_upload": (c.c_int32, {"context": c.c_void_p, "to": c.c_void_p, "from": c.c_void_p,
        "bytes": c.c_size_t, "stream": c.c_void_p}),
    "smla_download": (c.c_int32, {"context": c.c_void_p, "to": c.c_void_p, "from": c.c_void_p,
        "bytes": c.c_size_t, "stream": c.c_void_p}),
    "smla_set_log": (None, {"function": c.c_void_p, "user": c.c_void_p}),
    "smla_set_interrupt": (None, {"function": c.c_void_p, "user": c.c_void_p}),
    "smla_plan_create": (c.c_int32, {"args": c.c_void_p, "out": c.c_void_p}),
    "smla_plan_destroy": (None, {"plan": c.c_void_p}),
    "smla_plan_build": (c.c_int32, {"plan": c.c_void_p, "batch": c.c_void_p}),
    "smla_plan_field": (c.c_int32, {"plan": c.c_void_p, "name": c.c_char_p, "out": c.c_void_p}),
    "smla_plan_fields": (c.c_int32, {"plan": c.c_void_p, "names": c.c_void_p, "count": c.c_void_p}),
    "smla_describe_device": (c.c_int32, {"name": c.c_char_p, "out": c.c_void_p}),
    "smla_backend_list": (c.c_int32, {"names": c.c_void_p, "count": c.c_void_p}),
    "smla_backend_why_not": (c.c_int32, {"name": c.c_char_p, "args": c.c_void_p, "original": c.c_int32,
        "buffer": c.c_void_p, "bytes": c.c_void_p}),
    "smla_backend_select": (c.c_int32, {"args": c.c_void_p, "wanted": c.c_char_p, "buffer": c.c_void_p,
        "bytes": c.c_void_p}),
    "smla_backend_create": (c.c_int32, {"context": c.c_void_p, "name": c.c_char_p, "args": c.c_void_p,
        "out": c.c_void_p}),
    "smla_backend_destroy": (None, {"backend": c.c_void_p}),
    "smla_backend_get_info": (c.c_int32, {"backend": c.c_void_p, "info": c.c_void_p}),
    "smla_backend_cache_shape": (c.c_int32, {"backend": c.c_void_p, "group": c.c_int32, "pages": c.c_int64,
        "out": c.c_void_p}),
    "smla_backend_metadata_create": (c.c_int32, {"backend": c.c_void_p, "out": c.c_void_p}),
    "smla_backend_metadata_destroy": (None, {"metadata": c.c_void_p}),
    "smla_backend_metadata_build": (c.c_int32, {"metadata": c.c_void_p, "batch": c.c_void_p}),
    "smla_backend_metadata_field": (c.c_int32, {"metadata": c.c_void_p, "name": c.c_char_p,
        "out": c.c_void_p}),
    "smla_backend_metadata_fields": (c.c_int32, {"metadata": c.c_void_p, "names": c.c_void_p,
        "count": c.c_void_p}),
    "smla_backend_workspace_size": (c.c_int32, {"backend": c.c_void_p, "args": c.c_void_p,
        "bytes": c.c_void_p}),
    "smla_backend_forward": (c.c_int32, {"backend": c.c_void_p, "args": c.c_void_p, "workspace": Workspace,
        "stream": c.c_void_p}),
    "smla_format_get_info": (c.c_int32, {"format": c.c_int32, "width": c.c_int32, "info": c.c_void_p}),
    "smla_format_by_name": (c.c_int32, {"name": c.c_char_p, "format": c.c_void_p}),
    "smla_cache_bytes": (c.c_int32, {"cache": c.c_void_p, "bytes": c.c_void_p}),
    "smla_tensor_bytes": (c.c_int32, {"tensor": c.c_void_p, "bytes": c.c_void_p}),
    "smla_norm": (c.c_int32, {"context": c.c_void_p, "args": c.c_void_p, "workspace": Workspace,
        "stream": c.c_void_p}),
    "smla_rope": (c.c_int32, {"context": c.c_void_p, "args": c.c_void_p, "workspace": Workspace,
        "stream": c.c_void_p}),
    "smla_inverse_rope": (c.c_int32, {"context": c.c_void_p, "args": c.c_void_p, "workspace": Workspace,
        "stream": c.c_void_p}),
    "smla_project": (c.c_int32, {"context": c.c_void_p, "args": c.c_void_p, "workspace": Workspace,
        "stream": c.c_void_p}),
    "smla_absorb": (c.c_int32, {"context": c.c_void_p, "args": c.c_void_p, "workspace": Workspace,
        "stream": c.c_void_p}),
    "smla_up_project": (c.c_int32, {"context": c.c_void_p, "args": c.c_void_p, "workspace": Workspace,
        "stream": c.c_void_p}),
    "smla_out_project": (c.c_int32, {"context": c.c_void_p, "args": c.c_void_p, "workspace": Workspace,
        "stream": c.c_void_p}),
    "smla_config_layer_info": (c.c_int32, {"args": c.c_void_p, "info": c.c_void_p}),
    "smla_config_rope_frequencies": (c.c_int32, {"args": c.c_void_p, "count": c.c_int32,
        "frequencies": c.c_void_p}),
    "smla_attend": (c.c_int32, {"context": c.c_void_p, "args": c.c_void_p, "workspace": Workspace,
        "stream": c.c_void_p}),
    "smla_merge": (c.c_int32, {"context": c.c_void_p, "args": c.c_void_p, "workspace": Workspace,
        "stream": c.c_void_p}),
    "smla_write_kv": (c.c_int32, {"context": c.c_void_p, "args": c.c_void_p, "workspace": Workspace,
        "stream": c.c_void_p}),
    "smla_write_index": (c.c_int32, {"context": c.c_void_p, "args": c.c_void_p, "workspace": Workspace,
        "stream": c.c_void_p}),
    "smla_save_state": (c.c_int32, {"context": c.c_void_p, "args": c.c_void_p, "workspace": Workspace,
        "stream": c.c_void_p}),
    "smla_compress": (c.c_int32, {"context": c.c_void_p, "args": c.c_void_p, "workspace": Workspace,
        "stream": c.c_void_p}),
    "smla_gather": (c.c_int32, {"context": c.c_void_p, "args": c.c_void_p, "workspace": Workspace,
        "stream": c.c_void_p}),
    "smla_copy_pages": (c.c_int32, {"context": c.c_void_p, "args": c.c_void_p, "workspace": Workspace,
        "stream": c.c_void_p}),
    "smla_map": (c.c_int32, {"context": c.c_void_p, "args": c.c_void_p, "workspace": Workspace,
        "stream": c.c_void_p}),
    "smla_quant_index_q": (c.c_int32, {"context": c.c_void_p, "args": c.c_void_p, "workspace": Workspace,
        "stream": c.c_void_p}),
    "smla_score": (c.c_int32, {"context": c.c_void_p, "args": c.c_void_p, "workspace": Workspace,
        "stream": c.c_void_p}),
    "smla_select": (c.c_int32, {"context": c.c_void_p, "args": c.c_void_p, "workspace": Workspace,
        "stream": c.c_void_p}),
    "smla_score_select": (c.c_int32, {"context": c.c_void_p, "args": c.c_void_p, "workspace": Workspace,
        "stream": c.c_void_p}),
    "smla_score_select_blocks": (c.c_int32, {"context": c.c_void_p, "args": c.c_void_p,
        "workspace": Workspace, "stream": c.c_void_p}),
    "smla_workspace_size": (c.c_int32, {"context": c.c_void_p, "stage": c.c_int32, "args": c.c_void_p,
        "budget": c.c_size_t, "bytes": c.c_void_p}),
    "smla_workspace_init": (c.c_int32, {"context": c.c_void_p, "workspace": Workspace, "stream": c.c_void_p}),
    "smla_prepare": (c.c_int32, {"context": c.c_void_p, "stage": c.c_int32, "args": c.c_void_p}),
    "smla_explain_stage": (c.c_int32, {"context": c.c_void_p, "stage": c.c_int32, "args": c.c_void_p,
        "buffer": c.c_void_p, "bytes": c.c_void_p}),
    "smla_check_stage": (c.c_int32, {"context": c.c_void_p, "stage": c.c_int32, "args": c.c_void_p}),
    "smla_stage_field_count": (c.c_int32, {"stage": c.c_int32, "count": c.c_void_p}),
    "smla_stage_get_field": (c.c_int32, {"stage": c.c_int32, "index": c.c_int32, "field": c.c_void_p}),
    "smla_read_error": (c.c_int32, {"context": c.c_void_p, "workspace": Workspace, "stream": c.c_void_p,
        "out": c.c_void_p}),
    "smla_layer_create": (c.c_int32, {"context": c.c_void_p, "args": c.c_void_p, "out": c.c_void_p}),
    "smla_layer_destroy": (None, {"layer": c.c_void_p}),
    "smla_layer_get_info": (c.c_int32, {"layer": c.c_void_p, "info": c.c_void_p}),
    "smla_layer_workspace_size": (c.c_int32, {"layer": c.c_void_p, "step": c.c_void_p,
        "stage_budget": c.c_size_t, "bytes": c.c_void_p}),
    "smla_layer_forward": (c.c_int32, {"layer": c.c_void_p, "step": c.c_void_p, "stage_budget": c.c_size_t,
        "workspace": Workspace, "stream": c.c_void_p}),
    "smla_session_create": (c.c_int32, {"layer": c.c_void_p, "args": c.c_void_p, "out": c.c_void_p}),
    "smla_session_destroy": (None, {"session": c.c_void_p}),
    "smla_session_get_args": (c.c_int32, {"session": c.c_void_p, "args": c.c_void_p}),
    "smla_session_forward": (c.c_int32, {"session": c.c_void_p, "step": c.c_void_p}),
    "smla_session_topk": (c.c_int32, {"session": c.c_void_p, "out": c.c_void_p}),
    "smla_session_candidates": (c.c_int32, {"session": c.c_void_p, "out": c.c_void_p}),
    "smla_session_length": (c.c_int32, {"session": c.c_void_p, "request": c.c_int32, "tokens": c.c_void_p}),
    "smla_session_end_request": (c.c_int32, {"session": c.c_void_p, "request": c.c_int32}),
    "smla_session_truncate": (c.c_int32, {"session": c.c_void_p, "request": c.c_int32, "tokens": c.c_int32}),
    "smla_session_copy_request": (c.c_int32, {"session": c.c_void_p, "source": c.c_int32,
        "target": c.c_int32}),
    "smla_session_reorder": (c.c_int32, {"session": c.c_void_p, "sources": c.c_void_p, "count": c.c_int32}),
    "smla_session_clone": (c.c_int32, {"session": c.c_void_p, "args": c.c_void_p, "out": c.c_void_p}),
    "smla_session_resize": (c.c_int32, {"session": c.c_void_p, "args": c.c_void_p}),
    "smla_session_bytes": (c.c_int32, {"session": c.c_void_p, "cache_bytes": c.c_void_p,
        "workspace_bytes": c.c_void_p}),
    "smla_request_rows": (c.c_int32, {"args": c.c_void_p}),
    "smla_split_context": (c.c_int32, {"args": c.c_void_p}),
    "smla_lse_from_log2": (c.c_int32, {"log2_lse": c.c_void_p, "lse": c.c_void_p}),
    "smla_combined_rows": (c.c_int32, {"args": c.c_void_p}),
    "smla_mixed_rows": (c.c_int32, {"args": c.c_void_p}),
    "smla_decode_schedule": (c.c_int32, {"args": c.c_void_p}),
    "smla_prefill_chunks": (c.c_int32, {"args": c.c_void_p}),
}
