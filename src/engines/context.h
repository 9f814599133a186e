// A context: the engine, its threads, and the kernels demanded by name.
#pragma once

#include "engines/candidate.h"

#include <memory>

namespace smla {

class Context {
public:
    // SMLA_ISA sets the instruction set if the arguments do not.
    explicit Context(const smla_context_args& args);
    ~Context();
    Context(Context&&) noexcept;

    // Returns the environment of one call; the stream belongs to a CUDA device.
    Env env(Workspace workspace, smla_stream stream = nullptr) const;
    const std::string& description() const { return description_; }
    smla_engine engine() const { return env_.engine; }
    ThreadPool& pool() { return *pool_; }
    Device& device() const { return *env_.device; }
    // Zeroes the counters and the error word.
    void init_workspace(Workspace workspace, smla_stream stream) const;

    // Allocates memory of handles on the device (on a CPU, with the allocator); throws if memory runs out.
    void* allocate(size_t bytes);
    void release(void* memory);

private:
    Env env_;
    smla_allocator allocator_{};
    std::unique_ptr<Device> gpu_;
    std::unique_ptr<PlanCache> plans_;  // declared after gpu_: recordings are freed before the device
    std::unique_ptr<ThreadPool> pool_;
    std::string description_;
};

// Scratch of create calls, tools and tests on the context's device. It grows on demand.
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
