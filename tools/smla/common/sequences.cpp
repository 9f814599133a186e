#include "sequences.h"

#include <algorithm>
#include <cstring>

namespace smla::cli {

namespace {

// Progress of one request.
struct Cursor {
    int64_t done = 0;
    size_t chunk = 0;

    int64_t next(const Schedule& schedule, int64_t length) {
        const int64_t left = length - done;
        if (left <= 0) return 0;
        const int64_t prefill = left - schedule.decode_tokens;
        if (prefill <= 0) return 1;
        const int32_t size = schedule.chunks.empty()
                                 ? int32_t(length)
                                 : schedule.chunks[std::min(chunk, schedule.chunks.size() - 1)];
        ++chunk;
        return std::min<int64_t>(size, prefill);
    }
};

size_t row_bytes(const Tensor& tensor) {
    return tensor.ndim == 1 ? size_t(dtype_bits(tensor.dtype)) / 8
                            : size_t(tensor.shape[1]) * size_t(dtype_bits(tensor.dtype)) / 8;
}

// Tensors of one step: the rows of its requests, concatenated.
class StepBuffer {
public:
    void clear() { bytes_.clear(); }
    void append(const Tensor& from, int64_t first, int64_t n) {
        const char* at = static_cast<const char*>(from.data) + size_t(first) * row_bytes(from);
        bytes_.insert(bytes_.end(), at, at + size_t(n) * row_bytes(from));
    }
    void resize(size_t bytes) { bytes_.resize(bytes); }
    char* data() { return bytes_.data(); }
    Tensor tensor(const Tensor& like, int64_t rows) {
        return like.ndim == 1 ? make_tensor(bytes_.data(), like.dtype, {rows})
                              : make_tensor(bytes_.data(), like.dtype, {rows, like.shape[1]});
    }

private:
    std::vector<char> bytes_;
};

struct Part {
    size_t sequence;
    int64_t first, tokens;
};

double run_step(LayerChain& chain, std::vector<Sequence>& sequences, const std::vector<Part>& parts,
                const Schedule& schedule) {
    std::vector<StepRequest> requests;
    StepBuffer hidden, positions, topk, out;
    std::vector<StepBuffer> read(sequences[parts[0].sequence].read.size());
    int64_t tokens = 0;
    for (const Part& part : parts) {
        const Sequence& sequence = sequences[part.sequence];
        requests.push_back({int32_t(part.sequence), int32_t(part.tokens)});
        hidden.append(sequence.hidden, part.first, part.tokens);
        for (size_t i = 0; i < read.size(); ++i) read[i].append(sequence.read[i], part.first, part.tokens);
        if (present(sequence.positions)) positions.append(sequence.positions, part.first, part.tokens);
        if (present(sequence.topk)) topk.append(sequence.topk, part.first, part.tokens);
        tokens += part.tokens;
    }
    const Sequence& like = sequences[parts[0].sequence];
    out.resize(size_t(tokens) * row_bytes(like.out));
    Session::Step step;
    step.requests = requests;
    step.hidden = hidden.tensor(like.hidden, tokens);
    step.out = out.tensor(like.out, tokens);
    if (present(like.positions)) step.rope_positions = positions.tensor(like.positions, tokens);
    if (present(like.topk)) step.forced_topk = topk.tensor(like.topk, tokens);
    std::vector<Tensor> others;
    for (size_t i = 0; i < read.size(); ++i) others.push_back(read[i].tensor(like.read[i], tokens));
    const double seconds = chain.forward(step, others);

    const Tensor selected = schedule.keep_selected ? chain.selection() : Tensor{};
    int64_t at = 0;
    for (const Part& part : parts) {
        Sequence& sequence = sequences[part.sequence];
        std::memcpy(static_cast<char*>(sequence.out.data) + size_t(part.first) * row_bytes(like.out),
                    out.data() + size_t(at) * row_bytes(like.out), size_t(part.tokens) * row_bytes(like.out));
        if (present(selected)) {
            const auto* rows = static_cast<const int32_t*>(selected.data) + at * selected.shape[1];
            sequence.selected.insert(sequence.selected.end(), rows, rows + part.tokens * selected.shape[1]);
        }
        at += part.tokens;
    }
    return seconds;
}

}  // namespace

int32_t largest_step(const Schedule& schedule, size_t sequences) {
    int32_t chunk = 1;
    for (const int32_t size : schedule.chunks) chunk = std::max(chunk, size);
    return chunk * int32_t(sequences);
}

double run_sequences(LayerChain& chain, std::vector<Sequence>& sequences, const Schedule& schedule,
                     const std::function<void(int64_t tokens)>& progress) {
    std::vector<Cursor> cursors(sequences.size());
    double seconds = 0;
    for (int64_t step = 0;; ++step) {
        std::vector<Part> parts;
        bool waiting = false;
        int64_t tokens = 0;
        for (size_t s = 0; s < sequences.size(); ++s) {
            if (step < int64_t(s) * schedule.stagger) {
                waiting = true;
                continue;
            }
            const int64_t n = cursors[s].next(schedule, sequences[s].hidden.shape[0]);
            if (n == 0) continue;
            parts.push_back({s, cursors[s].done, n});
            cursors[s].done += n;
            tokens += n;
        }
        if (parts.empty() && !waiting) return seconds;
        if (parts.empty()) continue;
        seconds += run_step(chain, sequences, parts, schedule);
        if (progress) progress(tokens);
    }
}

}  // namespace smla::cli
