// What a stream is asked to do, captured and replayed.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <vector>

namespace gpu {

inline void must(cudaError_t result) { ASSERT_EQ(result, cudaSuccess) << cudaGetErrorString(result); }

// A captured graph of what `body` queues on a stream.
class Graph {
public:
    template <class Body>
    explicit Graph(const Body& body) {
        must(cudaStreamCreate(&stream_));
        must(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
        body(stream_);
        cudaGraph_t graph = nullptr;
        must(cudaStreamEndCapture(stream_, &graph));
        must(cudaGraphInstantiate(&exec_, graph, 0));
        size_t count = 0;
        must(cudaGraphGetNodes(graph, nullptr, &count));
        std::vector<cudaGraphNode_t> nodes(count);
        must(cudaGraphGetNodes(graph, nodes.data(), &count));
        for (const cudaGraphNode_t node : nodes) must(cudaGraphNodeGetType(node, &kinds_.emplace_back()));
        cudaGraphDestroy(graph);
    }
    ~Graph() {
        cudaGraphExecDestroy(exec_);
        cudaStreamDestroy(stream_);
    }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;
    const std::vector<cudaGraphNodeType>& kinds() const { return kinds_; }  // of its nodes
    cudaStream_t stream() const { return stream_; }
    void launch() const { must(cudaGraphLaunch(exec_, stream_)); }
    void replay() const {
        launch();
        must(cudaStreamSynchronize(stream_));
    }

private:
    cudaStream_t stream_ = nullptr;
    cudaGraphExec_t exec_ = nullptr;
    std::vector<cudaGraphNodeType> kinds_;
};

}  // namespace gpu
