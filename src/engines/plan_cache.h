// Cached plans of a context's calls. The key is the arguments, with every address reduced to what a plan may
// depend on. A repeated call costs a look-up, without a check or a search.
#pragma once

#include "core/fork.h"
#include "engines/candidate.h"
#include "ops/field.h"

#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

namespace smla {

// What is cached: a result for a call, or a whole step.
enum class PlanUse : uint8_t { run, size, check, step };

// Key of a plan: equal for calls that may share it.
class PlanKey {
public:
    // `what` is a stage, or the owner of a step.
    PlanKey(PlanUse use, uint64_t what, size_t budget, const Env& env) : reads_memory_(use != PlanUse::size) {
        const Head head{.use = uint16_t(use),
                        .isa = uint16_t(env.isa),
                        .flags = env.batch_invariant + 2u * env.slow_bf16_dots,
                        .engine = int32_t(env.engine),
                        .threads = int32_t(env.threads()),
                        .what = what,
                        .budget = budget,
                        .demands = env.demanded.hash()};
        add(&head, sizeof head);
    }
    // Adds an argument struct. An address is reduced to its alignment and whether it is null. A scale in host
    // memory is added by value, because checks read it.
    template <class Args>
    void add(const Args& args, std::span<const StageField> fields) {
        static_assert(sizeof args % 8 == 0);
        reduce_addresses(fields, add(&args, sizeof args));
    }
    // Adds one address, reduced likewise.
    void add_address(const void* address);
    // Adds numbers; returns false if there is no room.
    bool add_numbers(std::span<const int32_t> numbers);

    uint64_t hash() const;
    std::span<const char> bytes() const { return {data_.data(), bytes_}; }
    // Returns the reduced addresses in order; empty if there are too many. Two calls with equal keys and
    // addresses differ only in the contents of memory.
    std::span<const uintptr_t> addresses() const {
        return {addresses_.data(), address_count_ <= kMostAddresses ? address_count_ : 0};
    }

private:
    struct Head {
        uint16_t use, isa;
        uint32_t flags;
        int32_t engine, threads;
        uint64_t what, budget, demands;
    };
    const bool reads_memory_;              // if false, pointers may be invalid
    static constexpr size_t kMost = 6144;  // size of the largest step, which is V4's
    static constexpr size_t kMostAddresses = 96;
    alignas(8) std::array<char, kMost> data_;
    size_t bytes_ = 0;
    std::array<uintptr_t, kMostAddresses> addresses_;
    size_t address_count_ = 0;

    char* add(const void* from, size_t bytes) {
        if (bytes > kMost - bytes_)
            fail(SMLA_INTERNAL, "PlanKey", text(bytes_ + bytes), text("at most ", kMost));
        char* const to = data_.data() + bytes_;
        if (bytes) std::memcpy(to, from, bytes);  // an address of no bytes may be null
        bytes_ += bytes;
        return to;
    }
    void reduce_addresses(std::span<const StageField> fields, char* args);
    void reduce(smla_cache& cache);
    // Records the address and returns its reduced form.
    template <class Pointer>
    Pointer reduced(Pointer address);
};

// Thread-safe cache of a bounded number of plans; a new plan may evict an older one. A child of fork() starts
// with an empty cache, because another thread may have been changing it.
class PlanCache {
public:
    std::shared_ptr<const void> find(const PlanKey& key) const;
    void keep(const PlanKey& key, std::shared_ptr<const void> plan);

private:
    struct Slot {
        uint64_t hash = 0;
        std::vector<char> key;
        std::shared_ptr<const void> plan;
    };
    static constexpr size_t kSlots = 512, kProbes = 4;
    Birthplace birthplace_;
    mutable std::mutex mutex_;
    std::vector<Slot> slots_ = std::vector<Slot>(kSlots);
    size_t next_ = 0;  // slot of a full line to evict next
};

}  // namespace smla
