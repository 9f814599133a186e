#include "batch.h"

#include <algorithm>
#include <limits>

namespace smla::test {

namespace {

PlanGroup group_view(const Group& group, int64_t requests) {
    PlanGroup out{};
    if (!group.given()) return out;
    out.page_tokens = group.page_tokens;
    out.page_rows = group.page_rows;
    if (group.columns >= 0)
        out.block_table = make_tensor(group.table.data(), SMLA_I32, {requests, group.columns});
    if (!group.slots32.empty())
        out.slots = make_tensor(group.slots32.data(), SMLA_I32, {int64_t(group.slots32.size())});
    else if (!group.slots.empty())
        out.slots = make_tensor(group.slots.data(), SMLA_I64, {int64_t(group.slots.size())});
    return out;
}

int64_t row_of(const Group& group, int64_t request, int64_t position) {
    const int64_t page_rows = group.page_rows ? group.page_rows : group.page_tokens;
    const int64_t page = position / group.page_tokens;
    if (position < 0 || page >= group.columns) return -1;
    const int64_t block = group.table[size_t(request * group.columns + page)];
    if (block < 0) return -1;
    const int64_t row = block * page_rows + position % group.page_tokens;
    return row <= std::numeric_limits<int32_t>::max() ? row : -1;
}

// One token of the step, or padding (request -1).
struct Token {
    int64_t request = -1, position = 0, rope = 0;
    bool valid = false;
    std::map<int, int64_t> slot;  // by group
    int64_t visible() const { return valid ? position + 1 : 0; }
};

std::vector<Token> tokens_of(const PlanMaxima& maxima, const Batch& batch) {
    std::vector<Token> out;
    for (int64_t r = 0; r < batch.requests(); ++r) {
        const int64_t query = batch.starts[size_t(r) + 1] - batch.starts[size_t(r)];
        for (int64_t j = 0; j < query; ++j) {
            Token token;
            const size_t t = out.size();
            token.request = r;
            token.position = batch.lengths[size_t(r)] - query + j;
            token.rope = batch.rope.empty() ? token.position : batch.rope[t];
            token.valid = true;
            for (int g = 0; g < 6; ++g) {
                const bool entries = g == kCompressed || (g == kIndex && maxima.ratio > 0);
                if (!batch.groups[size_t(g)].given() || entries) continue;
                const Group& group = batch.groups[size_t(g)];
                token.slot[g] = group.slots.empty() ? row_of(group, r, token.position)
                                                    : std::max<int64_t>(-1, group.slots[t]);
                if (token.slot[g] < 0) token.valid = false;
            }
            out.push_back(token);
        }
    }
    out.resize(size_t(batch.tokens ? batch.tokens : batch.query_tokens()));
    return out;
}

}  // namespace

PlanBatch Batch::view() const {
    PlanBatch out{};
    out.struct_size = sizeof out;
    out.tokens = tokens;
    out.query_start_loc = make_tensor(starts.data(), SMLA_I32, {requests() + 1});
    out.seq_lens = make_tensor(lengths.data(), SMLA_I32, {requests()});
    if (!rope.empty()) out.rope_positions = make_tensor(rope.data(), SMLA_I64, {int64_t(rope.size())});
    PlanGroup* views[] = {&out.primary, &out.window, &out.compressed,
                          &out.index,   &out.state,  &out.index_state};
    for (size_t g = 0; g < 6; ++g) *views[g] = group_view(groups[g], requests());
    return out;
}

void set_table(Batch& batch, int group, int64_t columns, int32_t page_tokens, int32_t first) {
    Group& out = batch.groups[size_t(group)];
    out.columns = columns;
    out.page_tokens = page_tokens;
    out.table.resize(size_t(batch.requests() * columns));
    for (size_t i = 0; i < out.table.size(); ++i) out.table[i] = first + int32_t(i);
}

std::set<PageOf> needed_pages(const PlanMaxima& maxima, const Batch& batch) {
    std::set<PageOf> out;
    for (int64_t r = 0; r < batch.requests(); ++r) {
        // from the first to the last token that the caller has not made padding
        std::vector<int64_t> positions;
        for (int64_t t = batch.starts[size_t(r)]; t < batch.starts[size_t(r) + 1]; ++t) {
            const auto padded = [&](const Group& g) { return !g.slots.empty() && g.slots[size_t(t)] < 0; };
            if (std::none_of(batch.groups.begin(), batch.groups.end(), padded))
                positions.push_back(batch.lengths[size_t(r)] - (batch.starts[size_t(r) + 1] - t));
        }
        if (positions.empty()) continue;
        for (int g = 0; g < 6; ++g) {
            const Group& group = batch.groups[size_t(g)];
            if (!group.given() || group.columns < 0) continue;
            const bool entries = g == kCompressed || (g == kIndex && maxima.ratio > 0);
            int64_t begin = 0, end = positions.back() + 1;
            if (g == kWindow) begin = std::max<int64_t>(0, positions.front() - maxima.window + 1);
            if (g == kState || g == kIndexState) begin = group.slots.empty() ? positions.front() : end;
            if (entries) end /= maxima.ratio;
            for (int64_t row = begin; row < end; ++row) out.insert({g, r, row / group.page_tokens});
        }
    }
    return out;
}

std::map<std::string, Expected> expected_fields(const PlanMaxima& maxima, const Batch& batch) {
    std::map<std::string, Expected> out;
    const auto add = [&](const std::string& name, int64_t value) { out[name].values.push_back(value); };
    const bool entries = maxima.ratio > 0, index = batch.groups[kIndex].given();

    // decodes: requests before the first longer than the threshold
    int64_t decodes = 0;
    const auto query = [&](int64_t r) { return batch.starts[size_t(r) + 1] - batch.starts[size_t(r)]; };
    while (decodes < batch.requests() && query(decodes) <= 1 + maxima.speculative_tokens) ++decodes;
    const int64_t decode_tokens = batch.starts[size_t(decodes)];
    out["batch_split"] = {
        false, {decodes, batch.requests() - decodes, decode_tokens, batch.query_tokens() - decode_tokens}};
    std::vector<int64_t> cu{0};
    for (int64_t r = 0; r < batch.requests(); ++r)
        cu.push_back(cu.back() + (r < decodes ? 0 : batch.lengths[size_t(r)] / (entries ? maxima.ratio : 1)));
    if (index) out["ragged_cu"] = {false, cu};

    int64_t t = 0;
    for (const Token& token : tokens_of(maxima, batch)) {
        add("request_of_token", std::max<int64_t>(token.request, 0));
        add("position", token.position);
        add("rope_position", token.rope);
        add("is_valid", token.valid);
        add("visible_tokens", token.visible());
        for (int g = 0; g < 6; ++g) {
            if (!batch.groups[size_t(g)].given() || g == kCompressed || (g == kIndex && entries)) continue;
            add(std::string(kGroupNames[g]) + "_slot", token.request < 0 ? -1 : token.slot.at(g));
        }
        if (batch.groups[kWindow].given()) {
            std::vector<int64_t> rows;
            for (int64_t p = std::max<int64_t>(0, token.position - maxima.window + 1); p < token.visible();
                 ++p)
                rows.push_back(row_of(batch.groups[kWindow], token.request, p));
            add("window_len", int64_t(rows.size()));
            rows.resize(size_t(maxima.window), -1);
            for (const int64_t row : rows) add("window_rows", row);
        }
        const int64_t visible = entries ? token.visible() / maxima.ratio : token.visible();
        if (entries) {
            const bool closes = token.valid && (token.position + 1) % maxima.ratio == 0;
            const int64_t entry = token.position / maxima.ratio;
            add("visible_entries", visible);
            if (batch.groups[kCompressed].given())
                add("compressed_slot", closes ? row_of(batch.groups[kCompressed], token.request, entry) : -1);
            if (index) add("index_slot", closes ? row_of(batch.groups[kIndex], token.request, entry) : -1);
        }
        if (maxima.list_entries) {
            add("entry_len", visible);
            const int64_t columns = (maxima.max_seq_len + maxima.ratio - 1) / maxima.ratio;
            for (int64_t c = 0; c < (columns + 127) / 128 * 128; ++c)
                add("entry_rows", c < visible ? row_of(batch.groups[kCompressed], token.request, c) : -1);
        }
        if (index) {
            add("score_start", 0);
            add("score_end", visible);
            const int64_t start = token.request < 0 ? 0 : cu[size_t(token.request)];
            add("ragged_start", start);
            add("ragged_end", start + (token.request >= decodes ? visible : 0));
        }
        ++t;
    }
    return out;
}

std::vector<int64_t> values_of(const Tensor& field) {
    std::vector<int64_t> out;
    const int64_t n = element_count(field);
    for (int64_t i = 0; i < n; ++i) {
        if (field.dtype == SMLA_U8) out.push_back(static_cast<const uint8_t*>(field.data)[i]);
        else if (field.dtype == SMLA_I64) out.push_back(static_cast<const int64_t*>(field.data)[i]);
        else out.push_back(static_cast<const int32_t*>(field.data)[i]);
    }
    return out;
}

std::vector<int64_t> all_values_of(const Plan& plan, const char* name) {
    for (const FieldSpec& spec : kPlanFieldSpecs) {
        if (std::string(name) != spec.name) continue;
        Tensor field = largest_field(spec, plan.maxima());
        field.data = (plan.fields().*spec.member).data;
        return values_of(field);
    }
    return {};
}

}  // namespace smla::test
