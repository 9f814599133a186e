// The plans of a context's calls, kept by what they were made from: the arguments with every address reduced
// to what a plan may depend on. A call that comes again costs a look-up, neither a check nor a search.
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

// What is kept of a call, or of a whole step.
enum class PlanUse : uint8_t { run, size, check, step };

// Bytes that are the same for calls which may share a plan.
class PlanKey {
public:
    // `what`: a stage, or whose step it is.
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
    // Adds an argument struct. Of an address in its fields, only the alignment and whether it is null are
    // kept; a scale in host memory is kept by value, as checks look at it.
    template <class Args>
    void add(const Args& args, std::span<const StageField> fields) {
        static_assert(sizeof args % 8 == 0);
        reduce_addresses(fields, add(&args, sizeof args));
    }
    // The same for one address.
    void add_address(const void* address);
    // Adds numbers; false: there was no room for them.
    bool add_numbers(std::span<const int32_t> numbers);

    uint64_t hash() const;
    std::span<const char> bytes() const { return {data_.data(), bytes_}; }
    // The addresses that were reduced, in order; empty if there were too many. Two calls with the same key
    // and the same addresses differ only in what the memory holds.
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
    const bool reads_memory_;              // else pointers may lead nowhere
    static constexpr size_t kMost = 6144;  // of the largest step, a backend's of V4
    static constexpr size_t kMostAddresses = 96;
    alignas(8) std::array<char, kMost> data_;
    size_t bytes_ = 0;
    std::array<uintptr_t, kMostAddresses> addresses_;
    size_t address_count_ = 0;

    char* add(const void* from, size_t bytes) {
        if (bytes > kMost - bytes_)
            fail(SMLA_INTERNAL, "PlanKey", text(bytes_ + bytes), text("at most ", kMost));
        char* const to = data_.data() + bytes_;
        if (bytes) std::memcpy(to, from, bytes);  // of no bytes the address may be null
        bytes_ += bytes;
        return to;
    }
    void reduce_addresses(std::span<const StageField> fields, char* args);
    void reduce(smla_cache& cache);
    // Keeps the address and returns what is left of it in the key.
    template <class Pointer>
    Pointer reduced(Pointer address);
};

// Safe to use from many threads. Holds a bounded number of plans; a new one may push out an older one. In a
// child of fork() it holds nothing: another thread may have been changing it.
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
    size_t next_ = 0;  // which of a full line of slots goes
};

}  // namespace smla
