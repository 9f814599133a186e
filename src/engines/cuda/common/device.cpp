// A GPU: its facts, its memory, and whether this build has code for it.
#include "core/device.h"
#include "core/environment.h"

#include "engines/candidate.h"
#include "engines/cuda/common/check.h"
#include "engines/cuda/common/jobs.h"
#include "engines/staging_buffer.h"

#include <algorithm>

namespace smla {

namespace {

constexpr int kBuilt[] = {SMLA_CUDA_ARCHITECTURES};

std::string built_list() {
    std::string out;
    for (const int built : kBuilt) out += text(out.empty() ? "sm_" : ", sm_", built);
    return out;
}

// Returns the architecture that kernels on such a GPU are compiled for: in a build with PTX, the newest PTX
// that the GPU can run. Code that branches on the capability must branch alike.
int compiled_for(int capability) {
    int out = 0;
#ifdef SMLA_CUDA_PTX
    for (const int ptx : {SMLA_CUDA_PTX})
        if (ptx <= capability) out = std::max(out, ptx);
#endif
    return out ? out : capability;
}

int attribute(cudaDeviceAttr which, int index) {
    int value = 0;
    SMLA_CUDA_CALL(cudaDeviceGetAttribute(&value, which, index));
    return value;
}

struct Event {
    Event() { SMLA_CUDA_CALL(cudaEventCreate(&event)); }
    ~Event() { cudaEventDestroy(event); }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    cudaEvent_t event = nullptr;
};

class GraphRecording final : public Recording {
public:
    GraphRecording(Device& device, cudaGraphExec_t graph) : device_(device), graph_(graph) {}
    ~GraphRecording() override { cudaGraphExecDestroy(graph_); }  // waits for the end of a running launch
    void replay(smla_stream stream) const override {
        Device::Scope scope(device_);
        SMLA_CUDA_CALL(cudaGraphLaunch(graph_, stream_of(stream)));
    }

private:
    Device& device_;
    cudaGraphExec_t graph_;
};

// Captures the work that this thread queues on a private stream, in relaxed mode, because another thread's
// capture would otherwise prevent making a graph. Failures leave no error for the next CUDA call.
class Capture {
public:
    Capture() {
        try_it(cudaThreadExchangeStreamCaptureMode(&mode_));
        try_it(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
        capturing_ = try_it(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
    }
    ~Capture() {
        if (cudaGraph_t graph = end()) cudaGraphDestroy(graph);
        if (stream_) cudaStreamDestroy(stream_);
        cudaThreadExchangeStreamCaptureMode(&mode_);
    }
    Capture(const Capture&) = delete;
    Capture& operator=(const Capture&) = delete;
    bool capturing() const { return capturing_; }
    smla_stream stream() const { return stream_; }
    // Returns null if part of the work could not be captured.
    cudaGraphExec_t instantiate() {
        cudaGraphExec_t out = nullptr;
        cudaGraph_t graph = end();
        if (graph) try_it(cudaGraphInstantiate(&out, graph, 0));
        if (graph) cudaGraphDestroy(graph);
        return works_ ? out : nullptr;
    }

private:
    bool try_it(cudaError_t result) {
        if (result != cudaSuccess) works_ = false, cudaGetLastError();
        return works_;
    }
    cudaGraph_t end() {
        cudaGraph_t graph = nullptr;
        if (capturing_) try_it(cudaStreamEndCapture(stream_, &graph));
        capturing_ = false;
        return graph;
    }
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
    cudaStream_t stream_ = nullptr;
    bool works_ = true, capturing_ = false;
};

class CudaDevice final : public Device {
public:
    explicit CudaDevice(int index) : index_(index) {
        cudaDeviceProp properties;
        SMLA_CUDA_CALL(cudaGetDeviceProperties(&properties, index));
        const int own = 10 * properties.major + properties.minor;
        facts_.capability = compiled_for(own);
        facts_.multiprocessors = properties.multiProcessorCount;
        facts_.reads_pageable = attribute(cudaDevAttrPageableMemoryAccess, index) != 0;
        facts_.shared_bytes = size_t(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index));
        facts_.memory_bytes = properties.totalGlobalMem;
        facts_.l2_bytes = size_t(properties.l2CacheSize);
        facts_.name = properties.name;
        if (facts_.capability != own) facts_.name += text(" (sm_", own, ", from PTX)");
        // The variable is for the test of the error below.
        const int capability = environment_number("SMLA_PRETEND_CAPABILITY").value_or(facts_.capability);
        if (!has_code_for(capability))
            fail(SMLA_UNSUPPORTED, "args.device_index", text(facts_.name, ", sm_", capability),
                 text("a GPU that this build supports: ", built_list(),
                      " or a later minor version of one of them"));
    }
    smla_device_type type() const override { return SMLA_CUDA; }
    int32_t index() const override { return index_; }
    const DeviceFacts& facts() const override { return facts_; }

    void* allocate(size_t bytes) override {
        Scope scope(*this);
        void* memory = nullptr;
        SMLA_CUDA_CALL(cudaMalloc(&memory, bytes ? bytes : 1));
        return memory;
    }
    void release(void* memory) noexcept override {
        if (memory) cudaFree(memory);
    }
    void upload(void* to, const void* from, size_t bytes, smla_stream stream) override {
        copy(to, from, bytes, cudaMemcpyHostToDevice, stream);
    }
    void upload_heap(void* to, const void* from, size_t bytes, smla_stream stream) override {
        Scope scope(*this);
        if (bytes)
            SMLA_CUDA_CALL(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_of(stream)));
    }
    void download(void* to, const void* from, size_t bytes, smla_stream stream) override {
        copy(to, from, bytes, cudaMemcpyDeviceToHost, stream);
    }
    bool reaches(const void* memory) const override {
        cudaPointerAttributes attributes{};
        const cudaError_t result = cudaPointerGetAttributes(&attributes, memory);
        if (result == cudaErrorInvalidValue) cudaGetLastError();  // an address unknown to CUDA
        else check_cuda(result, "cudaPointerGetAttributes");
        return attributes.type != cudaMemoryTypeUnregistered || facts_.reads_pageable;
    }
    void fill(void* to, int byte, size_t bytes, smla_stream stream) override {
        Scope scope(*this);
        if (bytes) SMLA_CUDA_CALL(cudaMemsetAsync(to, byte, bytes, stream_of(stream)));
    }
    void fill_rows(void* to, size_t pitch, int byte, size_t row_bytes, size_t rows,
                   smla_stream stream) override {
        Scope scope(*this);
        if (row_bytes && rows)
            SMLA_CUDA_CALL(cudaMemset2DAsync(to, pitch, byte, row_bytes, rows, stream_of(stream)));
    }
    void wait(smla_stream stream) override {
        Scope scope(*this);
        SMLA_CUDA_CALL(cudaStreamSynchronize(stream_of(stream)));
    }

    bool capturing(smla_stream stream) override {
        Scope scope(*this);
        cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        const cudaError_t result = cudaStreamIsCapturing(stream_of(stream), &status);
        if (result != cudaErrorStreamCaptureImplicit) {
            check_cuda(result, "cudaStreamIsCapturing");
            return status != cudaStreamCaptureStatusNone;
        }
        cudaGetLastError();
        return true;
    }

    double seconds_of(smla_stream stream, const std::function<void()>& body) override {
        Scope scope(*this);
        const Event begin, end;
        SMLA_CUDA_CALL(cudaEventRecord(begin.event, stream_of(stream)));
        body();
        SMLA_CUDA_CALL(cudaEventRecord(end.event, stream_of(stream)));
        SMLA_CUDA_CALL(cudaEventSynchronize(end.event));
        float milliseconds = 0;
        SMLA_CUDA_CALL(cudaEventElapsedTime(&milliseconds, begin.event, end.event));
        return milliseconds * 1e-3;
    }

    void build_plan(const PlanJob& job, smla_stream stream) override {
        cuda::build_plan_on_gpu(job, *this, stream);
    }
    void fill_metadata(const MetadataJob& job, smla_stream stream) override {
        cuda::fill_metadata_on_gpu(job, *this, stream);
    }
    std::unique_ptr<StagingBuffer> open_staging_buffer(size_t bytes) override {
        return cuda::open_staging_buffer_on_gpu(*this, bytes);
    }
    void count_up(const int32_t* counts, int32_t* rows, int64_t n, int64_t columns,
                  smla_stream stream) override {
        cuda::count_up_on_gpu(counts, rows, n, columns, *this, stream);
    }
    void note_bad_value(const IndexScan& scan, Stage stage, const Env& env) override {
        cuda::note_bad_value_on_gpu(scan, stage, env);
    }

    std::unique_ptr<Recording> record(const std::function<void(smla_stream)>& body) override {
        Scope scope(*this);
        Capture capture;
        if (!capture.capturing()) return nullptr;
        try {
            body(capture.stream());
        } catch (const Error&) {
            return nullptr;  // the caller gets the error when it runs the body without recording
        }
        cudaGraphExec_t graph = capture.instantiate();
        return graph ? std::make_unique<GraphRecording>(*this, graph) : nullptr;
    }

private:
    // Copies and waits, because host memory may be pageable, and freed after the call.
    void copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, smla_stream stream) {
        Scope scope(*this);
        if (bytes == 0) return;
        SMLA_CUDA_CALL(cudaMemcpyAsync(to, from, bytes, kind, stream_of(stream)));
        SMLA_CUDA_CALL(cudaStreamSynchronize(stream_of(stream)));
    }
    int enter() override {
        int before = 0;
        SMLA_CUDA_CALL(cudaGetDevice(&before));
        if (before != index_) SMLA_CUDA_CALL(cudaSetDevice(index_));
        return before;
    }
    void leave(int before) noexcept override {
        if (before != index_) cudaSetDevice(before);
    }

    int index_;
    DeviceFacts facts_;
};

}  // namespace

std::vector<int> cuda_architectures() { return {std::begin(kBuilt), std::end(kBuilt)}; }

std::unique_ptr<Device> open_cuda_device(int32_t index) {
    // Loads kernels eagerly, because a first launch in a capture could not load them. Has an effect only
    // before CUDA is initialized.
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    int count = 0;
    const cudaError_t result = cudaGetDeviceCount(&count);
    if (result != cudaSuccess || count == 0) {
        cudaGetLastError();
        fail(SMLA_UNSUPPORTED, "args.engine",
             text("the cuda engine requires an NVIDIA GPU, but the CUDA driver reports: ",
                  result == cudaSuccess ? "no device" : cudaGetErrorString(result)),
             "");
    }
    SMLA_CHECK(index < count, "args.device_index", index, text("below ", count, " (the number of GPUs)"));
    return std::make_unique<CudaDevice>(index);
}

}  // namespace smla
