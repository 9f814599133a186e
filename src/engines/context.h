// A context: the engine, its threads, the kernels demanded by name.
#pragma once

#include "engines/candidate.h"

#include <memory>

namespace smla {

class Context {
public:
    // SMLA_ISA names the instruction set where the arguments leave it open.
    explicit Context(const smla_context_args& args);
    ~Context();
    Context(Context&&) noexcept;

    // The environment of one call; the stream is a CUDA device's.
    Env env(Workspace workspace, smla_stream stream = nullptr) const;
    const std::string& description() const { return description_; }
    smla_engine engine() const { return env_.engine; }
    ThreadPool& pool() { return *pool_; }
    Device& device() const { return *env_.device; }
    // Zeroes the counters and the error word.
    void init_workspace(Workspace workspace, smla_stream stream) const;

    // Memory of handles on the device (on a CPU from the allocator); throws when there is none.
    void* allocate(size_t bytes);
    void release(void* memory);

private:
    Env env_;
    smla_allocator allocator_{};
    std::unique_ptr<Device> gpu_;
    std::unique_ptr<PlanCache> plans_;  // after gpu_: its recordings must go before the device
    std::unique_ptr<ThreadPool> pool_;
    std::string description_;
};

// Scratch on the context's device that lives as long as its owner and grows when a larger one is asked for:
// for create calls, tools and tests.
class OwnedWorkspace {
public:
    explicit OwnedWorkspace(Context& context) : context_(context) {}
    ~OwnedWorkspace() { context_.release(memory_.data); }
    OwnedWorkspace(const OwnedWorkspace&) = delete;
    OwnedWorkspace& operator=(const OwnedWorkspace&) = delete;
    Workspace at_least(size_t bytes);

private:
    Context& context_;
    Workspace memory_;
};

}  // namespace smla
