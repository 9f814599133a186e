// A batch with its own memory, and the plan's fields as a slow model sees them: one look-up per number, from
// the documentation in smla/plan.h, sharing no code with the plan.
#pragma once

#include "plan/plan.h"

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace smla::test {

struct Group {
    int64_t columns = 0;           // -1: no table
    std::vector<int32_t> table;    // [R,columns]
    std::vector<int64_t> slots;    // empty: looked up
    std::vector<int32_t> slots32;  // not empty: given to the plan instead, as i32
    int32_t page_tokens = 0, page_rows = 0;
    bool given() const { return page_tokens != 0; }
};

struct Batch {
    std::vector<int32_t> starts{0}, lengths;
    std::vector<int64_t> rope;
    int32_t tokens = 0;
    std::array<Group, 6> groups;  // in the order of their bits

    int64_t requests() const { return int64_t(lengths.size()); }
    int64_t query_tokens() const { return starts.back(); }
    PlanBatch view() const;
};

constexpr const char* kGroupNames[] = {"primary", "window", "compressed", "index", "state", "index_state"};
enum { kPrimary, kWindow, kCompressed, kIndex, kState, kIndexState };

// A request of `query` new tokens, `length` in all.
inline void add_request(Batch& batch, int32_t query, int32_t length) {
    batch.starts.push_back(batch.starts.back() + query);
    batch.lengths.push_back(length);
}
// A table of `columns` per request whose blocks count up from `first`.
void set_table(Batch& batch, int group, int64_t columns, int32_t page_tokens, int32_t first = 0);

// A field by name: elements per token (or all of it), and the numbers.
struct Expected {
    bool per_token = true;
    std::vector<int64_t> values;
};
// A column of a request's row in a group's table.
struct PageOf {
    int group;
    int64_t request, column;
    auto operator<=>(const PageOf&) const = default;
};
// What the tokens of the step store to or may attend to.
std::set<PageOf> needed_pages(const PlanMaxima& maxima, const Batch& batch);
std::map<std::string, Expected> expected_fields(const PlanMaxima& maxima, const Batch& batch);

std::vector<int64_t> values_of(const Tensor& field);
// The whole memory of a field, also behind the step's tokens.
std::vector<int64_t> all_values_of(const Plan& plan, const char* name);

}  // namespace smla::test
