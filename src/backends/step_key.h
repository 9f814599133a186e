// Address fields of a step's data, for the key of a cached plan (engines/plan_cache.h).
#pragma once

#include "backends/step.h"
#include "ops/field.h"

namespace smla {

template <size_t... N>
constexpr auto join_fields(const std::array<StageField, N>&... tables) {
    std::array<StageField, (N + ...)> out{};
    size_t n = 0;
    const auto append = [&](const auto& table) {
        for (const StageField& field : table) out[n++] = field;
    };
    (append(tables), ...);
    return out;
}

// Returns the fields of a struct at offset `at` in another struct.
template <size_t N>
constexpr auto fields_inside(std::array<StageField, N> table, size_t at) {
    for (StageField& field : table) field.offset += at;
    return table;
}

#define SMLA_PLACE(member) fields::in(SMLA_FIELD(member), 0, {})

inline constexpr auto kGroupPlaces = [] {
    using Args = CacheGroup;
    return std::array{fields::cache(SMLA_FIELD(cache), 0), SMLA_PLACE(block_table), SMLA_PLACE(slots)};
}();

inline constexpr auto kWindowPlaces = [] {
    using Args = Window;
    return join_fields(fields_inside(kGroupPlaces, offsetof(Args, group)),
                       std::array{SMLA_PLACE(rows), SMLA_PLACE(lengths)});
}();

inline constexpr auto kEntriesPlaces = [] {
    using Args = Entries;
    return join_fields(fields_inside(kGroupPlaces, offsetof(Args, group)),
                       std::array{SMLA_PLACE(visible), SMLA_PLACE(rows), SMLA_PLACE(lengths)});
}();

inline constexpr auto kBatchPlaces = [] {
    using Args = StepBatch;
    return std::array{SMLA_PLACE(request_of_token), SMLA_PLACE(position), SMLA_PLACE(rope_position),
                      SMLA_PLACE(visible_tokens)};
}();

// Returns a number that is unique in this process. Addresses are not, because memory is reused.
uint64_t unique_id();

}  // namespace smla
