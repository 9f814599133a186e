// docs/backends: a table per document, with every name of the document, no empty cell, and no test that is
// not there.
#include "support.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

namespace smla::test {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = SMLA_SOURCE_DIR;

std::string text_of(const fs::path& path) {
    std::ifstream file(path);
    EXPECT_TRUE(file) << path;
    std::stringstream out;
    out << file.rdbuf();
    return out.str();
}

std::string trimmed(const std::string& text) {
    const size_t begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t");
    return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

// Rows of a document's tables, without heads and rulers.
std::vector<std::vector<std::string>> rows_of(const std::string& document) {
    std::vector<std::vector<std::string>> out;
    std::istringstream lines(document);
    int in_table = 0;
    for (std::string line; std::getline(lines, line);) {
        if (line.empty() || line[0] != '|') {
            in_table = 0;
            continue;
        }
        if (++in_table <= 2) continue;
        std::vector<std::string> cells;
        std::istringstream parts(line.substr(1, line.rfind('|') - 1) + "|");
        for (std::string cell; std::getline(parts, cell, '|');) cells.push_back(trimmed(cell));
        out.push_back(cells);
    }
    return out;
}

// Problems of a table's cells: what a table must not have.
std::vector<std::string> faults(const std::vector<std::vector<std::string>>& rows, size_t columns,
                                const std::string& tests) {
    std::vector<std::string> out;
    for (const auto& row : rows) {
        const std::string label = row.empty() ? "" : row[0];
        if (row.size() != columns)
            out.push_back("row '" + label + "' has " + std::to_string(row.size()) + " cells");
        for (const std::string& cell : row)
            if (cell.empty()) out.push_back("row '" + label + "' has an empty cell");
        const std::regex name("`([A-Z][A-Za-z0-9]+)\\.([A-Za-z0-9_]+)`");
        const std::string& last = row.back();
        bool reason = last.find("absent") != std::string::npos ||
                      last.find("no such device") != std::string::npos ||
                      last.find("golden files") != std::string::npos;
        for (std::sregex_iterator found(last.begin(), last.end(), name), end; found != end; ++found) {
            reason = true;
            const std::string suite = (*found)[1].str(), test = (*found)[2].str() + ")";
            // those of the contract are written once for processors and GPUs (tests/contract/engines.h)
            const bool twice =
                suite == "Contract" && tests.find("CONTRACT_TEST(" + test) != std::string::npos;
            if (!twice && tests.find("(" + suite + ", " + test) == std::string::npos)
                out.push_back("row '" + label + "' names a test that is not there: " + found->str());
        }
        if (!reason) out.push_back("row '" + label + "' has neither a test nor a reason");
    }
    return out;
}

std::string all_tests() {
    std::string out;
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / "tests"))
        if (entry.path().extension() == ".cpp") out += text_of(entry.path());
    return out;
}

// Names that the published documents have, by class; every one must stand in the first column of its table.
const std::map<std::string, std::vector<std::string>> kNames = {
    {"FLASHMLA_SPARSE",
     {"logger",
      "FlashMLASparseBackend",
      "accept_output_buffer",
      "get_name",
      "get_metadata_cls",
      "get_builder_cls",
      "get_impl_cls",
      "get_kv_cache_shape",
      "num_blocks",
      "cache_dtype_str",
      "get_supported_dtypes",
      "get_supported_head_sizes",
      "MLASparsePrefillMetadata",
      "has_context",
      "context_lens",
      "FlashMLASparseDecodeAndContextMetadata",
      "scheduler_metadata",
      "num_splits",
      "cache_lens",
      "prefill_context_lengths",
      "prefill_new_k_start_locs",
      "dummy_block_table",
      "filter_prefill_indices",
      "FlashMLASparseMetadata",
      "num_reqs",
      "max_query_len",
      "max_seq_len",
      "num_actual_tokens",
      "query_start_loc",
      "slot_mapping",
      "block_table",
      "req_id_per_token",
      "block_size = 64",
      "topk_tokens = 2048",
      "FP8KernelMetadata",
      "fp8_extra_metadata",
      "_convert_req_index_to_global_index_kernel",
      "req_id_ptr",
      "max_num_blocks_per_req",
      "bt_stride0",
      "bt_stride1",
      "ti_stride0",
      "ti_stride1",
      "out_stride0",
      "out_stride1",
      "triton_convert_req_index_to_global_index",
      "BLOCK_SIZE=64",
      "NUM_TOPK_TOKENS=2048",
      "BLOCK_N=128",
      "req_id.dtype",
      "block_table.dtype",
      "token_indices.dtype",
      "token_indices.shape[1]",
      "% BLOCK_N",
      "FlashMLASparseMetadataBuilder",
      "cudagraph_support",
      "kv_cache_spec",
      "layer_names",
      "vllm_config",
      "device",
      "model_config",
      "num_heads",
      "mla_dims",
      "topk_tokens",
      "use_fp8_kv_cache",
      "topk_tokens_tensor",
      "max_model_len_tensor",
      "max_num_sm_parts",
      "tile_scheduler_metadata_buffer",
      "num_splits_buffer",
      "req_id_per_token_buffer",
      "build(",
      "common_prefix_len",
      "common_attn_metadata",
      "fast_build",
      "get_mla_metadata",
      "_lse2_to_lse",
      "FlashMLASparseImpl",
      "head_size",
      "scale",
      "num_kv_heads",
      "alibi_slopes",
      "sliding_window",
      "kv_cache_dtype",
      "logits_soft_cap",
      "attn_type",
      "kv_sharing_target_layer_name",
      "topk_indice_buffer",
      "indexer",
      "mla_args",
      "softmax_scale",
      "topk_indices_buffer",
      "padding",
      "_forward_bf16_kv",
      "_forward_fp8_kv",
      "flash_mla_sparse_prefill",
      "flash_mla_with_kvcache",
      "head_dim_v=512",
      "forward(",
      "output is not None",
      "output_scale",
      "output_block_scale",
      "attn_metadata is None",
      "W_UK_T",
      "concat_and_cache_mla",
      "kv_cache.numel() > 0",
      "_k_scale",
      "_v_up_proj",
      "warning_once",
      "__init__",
      "assert indexer is not None",
      "padding % self.num_heads",
      "fp8_extra_metadata is not None",
      "prefill_context_lengths is not None",
      "k_c_normed",
      "k_pe.squeeze(1)",
      "W_UV",
      "torch.cat"}},
    {"SPARSE_MLA_SM120",
     {"SparseMLASm120Backend",
      "supported_dtypes",
      "supported_kv_cache_dtypes",
      "get_supported_kernel_block_sizes",
      "get_name",
      "get_impl_cls",
      "get_builder_cls",
      "get_supported_head_sizes",
      "is_mla",
      "is_sparse",
      "supports_compute_capability",
      "supports_combination",
      "get_kv_cache_shape",
      "SparseMLASm120Impl",
      "alibi_slopes",
      "sliding_window",
      "logits_soft_cap",
      "attn_type",
      "num_heads",
      "head_size",
      "scale",
      "num_kv_heads",
      "kv_cache_dtype",
      "kv_lora_rank",
      "qk_nope_head_dim",
      "qk_rope_head_dim",
      "v_head_dim",
      "kv_sharing_target_layer_name",
      "topk_indice_buffer",
      "assert indexer is not None",
      "topk_indices_buffer",
      "_wrapper",
      "supports_quant_query_input",
      "forward_mqa",
      "isinstance(q, tuple)",
      "triton_convert_req_index_to_global_index",
      "new_empty",
      "kv_cache_4d",
      "run(",
      "return output, None",
      "SparseMLASm120Metadata",
      "num_reqs",
      "max_query_len",
      "max_seq_len",
      "num_actual_tokens",
      "query_start_loc",
      "slot_mapping",
      "block_table",
      "req_id_per_token",
      "seq_lens",
      "block_size = 64",
      "topk_tokens = 2048",
      "SparseMLASm120MetadataBuilder",
      "_cudagraph_support",
      "vllm_config",
      "layer_names",
      "kv_cache_spec",
      "model_config",
      "device",
      "mla_dims",
      "req_id_per_token_buffer",
      "build(",
      "common_prefix_len",
      "fast_build",
      "topk_indices_buffer is not None"}},
    {"TRITON_MLA_SPARSE",
     {"TritonMLASparseImpl",
      "XPUMLASparseImpl",
      "XPUMLASparseMetadata",
      "__init__",
      "_sm_count",
      "num_compute_units",
      "_warmup_autotune",
      "topk_indices_buffer is None",
      "_DIM_QK",
      "KV_SPLITS_CANDIDATES",
      "triton_mla_sparse_attention",
      "num_kv_splits",
      "_INDEXER_NUM_HEADS",
      "_INDEXER_HEAD_DIM",
      "n_head",
      "head_dim",
      "warmup_fp8_mqa_logits_triton",
      "warmup_fp8_paged_mqa_logits_triton",
      "get_current_vllm_config_or_none",
      "cache_config.block_size",
      "_forward_bf16_kv",
      "kv_c_and_k_pe_cache.view",
      "topk_indices.view",
      "self.num_heads"}},
    {"DSV4_SPARSE_MLA_SM120",
     {"DeepseekV4SM120SparseBackend",
      "DeepseekV4FlashMLASparseBackend",
      "get_name",
      "get_impl_cls",
      "DeepseekV4SM120SparseImpl",
      "DeepseekV4SparseMLAAttentionImpl",
      "backend_cls",
      "_select_v4_sparse_impl",
      "forward_mqa",
      "kv",
      "positions",
      "output.shape == q.shape",
      "output.dtype == q.dtype",
      "attn_metadata is None",
      "isinstance(attn_metadata, dict)",
      "flashmla_metadata",
      "swa_metadata is not None",
      "swa_only",
      "compress_ratio",
      "self_kv_cache",
      "swa_kv_cache",
      "num_decodes",
      "num_prefills",
      "num_decode_tokens",
      "num_prefill_tokens",
      "_forward_decode",
      "attn_metadata is not None",
      "is_valid_token is not None",
      "block_size // layer.compress_ratio",
      "topk_indices_buffer is not None",
      "compute_global_topk_indices_and_lens",
      "token_to_req_indices",
      "c128a_global_decode_topk_indices",
      "c128a_decode_topk_lens",
      "decode_swa_indices",
      "decode_swa_lens",
      "unsqueeze(1)",
      "_sparse_mla_wrapper is not None",
      "run(",
      "attn_sink",
      "layer.scale",
      "padded_heads",
      "_forward_prefill",
      "query_start_loc_cpu is not None",
      "prefill_token_base",
      "local_topk_indices",
      "c128a_prefill_topk_indices",
      "prefill_swa_indices is not None",
      "prefill_swa_lens is not None",
      "token_to_req_indices is not None",
      "PREFILL_CHUNK_SIZE",
      "num_chunks",
      "extra_indices_chunk",
      "extra_topk_length_chunk",
      "unsqueeze(-2)"}},
    {"FLASHINFER_MLA_SPARSE_DSV4",
     {"DeepseekV4FlashInferMLASparseBackend",
      "DeepseekV4FlashMLASparseBackend",
      "get_name",
      "get_impl_cls",
      "DeepseekV4FlashInferMLASparseImpl",
      "DeepseekV4SparseMLAAttentionImpl",
      "backend_cls",
      "get_padded_num_q_heads",
      "init_layer_buffers",
      "kv_cache_torch_dtype",
      "_flashinfer_fp8_q_scale",
      "_flashinfer_fp8_q_scale_inv",
      "_flashinfer_fp8_kv_scale",
      "_flashinfer_fp8_bmm1_scale",
      "_flashinfer_fp8_bmm2_scale",
      "forward_mqa",
      "output.shape[0] == q.shape[0]",
      "output.shape[1] >= q.shape[1]",
      "expected_output_dtype",
      "attn_metadata is None",
      "isinstance(attn_metadata, dict)",
      "flashmla_metadata",
      "swa_metadata is not None",
      "swa_only",
      "self_kv_cache",
      "swa_kv_cache",
      "_build_sparse_index_metadata",
      "swa_metadata.seq_lens is not None",
      "swa_metadata.query_start_loc is not None",
      "swa_metadata.token_to_req_indices is not None",
      "swa_metadata.decode_swa_indices is not None",
      "swa_metadata.block_table is not None",
      "window_size",
      "decode_compressed_topk_lens",
      "decode_compressed_indices_are_local",
      "decode_is_valid_token",
      "is_valid_token is not None",
      "decode_compressed_indices",
      "prefill_topk_indices",
      "top_k",
      "topk_indices_buffer is not None",
      "kv_cache is not None",
      "attn_metadata is not None",
      "compressed_kv_cache",
      "compressed_block_table",
      "compressed_block_size",
      "c128a_prefill_topk_indices is not None",
      "c128a_global_decode_topk_indices is not None",
      "c128a_decode_topk_lens is not None",
      "seq_lens.dtype",
      "build_flashinfer_mixed_sparse_indices",
      "sparse_indices",
      "sparse_topk_lens",
      "_forward(",
      "torch.float8_e4m3fn)",
      "num_tokens == 0",
      "query.dtype == torch.float8_e4m3fn",
      "query.dtype == torch.bfloat16",
      "query.contiguous()",
      "padded_query",
      "_get_flashinfer_dsv4_workspace",
      "decode_cu",
      "decode_lens_cpu",
      "max_q_len",
      "prefill_cu",
      "prefill_lens_cpu",
      "flashinfer_trtllm_batch_decode_sparse_mla_dsv4",
      "sinks"}},
    {"FLASHMLA_SPARSE_DSV4",
     {"DeepseekV4FlashMLASparseBackend",
      "get_kv_cache_shape",
      "get_compressed_slot_mapping",
      "slot_mapping",
      "block_size",
      "c128a_global_decode_topk_indices",
      "c128a_decode_topk_lens",
      "c128a_prefill_topk_indices",
      "DeepseekSparseSWAMetadata",
      "window_size",
      "token_to_req_indices",
      "is_valid_token",
      "decode_swa_indices",
      "decode_swa_lens",
      "prefill_swa_indices",
      "prefill_seq_lens",
      "prefill_gather_lens",
      "tile_sched_swaonly",
      "tile_sched_c4a",
      "tile_sched_c128a",
      "split_decodes_and_prefills",
      "combine_topk_swa_indices",
      "PREFILL_CHUNK_SIZE",
      "cp_gather_indexer_k_quant_cache",
      "cp_gather_and_upconvert_fp8_kv_cache",
      "dequantize_and_gather_k_cache"}}};

TEST(BackendTables, EveryNameHasARowAndEveryRowIsFull) {
    const std::string tests = all_tests();
    std::set<std::string> documents;
    for (const auto& [backend, names] : kNames) {
        SCOPED_TRACE(backend);
        documents.insert(backend + ".md");
        const auto rows = rows_of(text_of(kRoot / "docs" / "backends" / (backend + ".md")));
        EXPECT_EQ(faults(rows, 3, tests), std::vector<std::string>());
        std::string subjects;
        for (const auto& row : rows) subjects += row[0] + "\n";
        for (const std::string& name : names) EXPECT_NE(subjects.find(name), std::string::npos) << name;
    }
    const char* const* names = nullptr;
    int32_t count = 0;
    ASSERT_EQ(smla_backend_list(&names, &count), SMLA_OK);
    for (int32_t i = 0; i < count; ++i)
        EXPECT_TRUE(documents.count(std::string(names[i]) + ".md")) << names[i];
}

TEST(BackendTables, EveryTrapHasARow) {
    const auto rows = rows_of(text_of(kRoot / "docs" / "backends" / "traps.md"));
    EXPECT_EQ(faults(rows, 4, all_tests()), std::vector<std::string>());
    ASSERT_EQ(rows.size(), 46u);
    for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i][0], std::to_string(i + 1));
}

TEST(BackendTables, AFaultIsSeen) {
    const std::string tests = "TEST(Suite, Name) {}";
    const std::string head = "| a | b | c |\n|---|---|---|\n";
    const auto problems = [&](const std::string& row) {
        return faults(rows_of(head + row + "\n"), 3, tests).size();
    };
    EXPECT_EQ(problems("| x | y | `Suite.Name` |"), 0u);
    EXPECT_EQ(problems("| x | none | absent: unused |"), 0u);
    EXPECT_EQ(problems("| x |  | `Suite.Name` |"), 1u);
    EXPECT_EQ(problems("| x | y | `Suite.Other` |"), 1u);
    EXPECT_EQ(problems("| x | y | see there |"), 1u);
    EXPECT_EQ(problems("| x | `Suite.Name` |"), 1u);
}

}  // namespace
}  // namespace smla::test
