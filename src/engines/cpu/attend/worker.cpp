#include "engines/cpu/attend/worker.h"

#include "core/e4m3_table.h"

#include <algorithm>
#include <cstring>

namespace smla::cpu_attend {

namespace {

constexpr int kFewVectors = 4;  // maximum vectors of a chunk with few heads

struct Entered {  // processor state for the products of a unit
    explicit Entered(const Micro& micro) : micro(micro) {
        if (micro.enter) micro.enter();
    }
    ~Entered() {
        if (micro.leave) micro.leave();
    }
    const Micro& micro;
};

}  // namespace

void Worker::run(int64_t token, int chunk, int split, const Partial& out) {
    chunk_ = plan_.chunk(chunk);
    out_ = out;
    int64_t total = 0;
    for (int s = 0; s < call_.source_count; ++s)
        ends_[s] = total += call_.sources[s].valid(token, scratch_.rows + total);
    const int64_t begin = total * split / plan_.splits;
    end_ = total * (split + 1) / plan_.splits;
    *out_.count = end_ - begin;
    if (begin == end_) return;
    const Entered entered(plan_.micro);
    Block block{0, begin, 0};
    next_block(block);
    locate(block, 0);
    plan_prefetch(true, block, 0);
    pack_queries(token);
    for (int buffer = 0; block.count > 0; buffer ^= 1) {
        Block next{block.source, block.begin + block.count, 0};
        const bool more = next_block(next);
        if (more) locate(next, buffer ^ 1);
        plan_prefetch(more, next, buffer ^ 1);
        const bool first = block.begin == begin;
        const bool rescale = weigh(block, buffer, first);
        accumulate(block, first ? Carry::none : rescale ? Carry::rescale : Carry::keep);
        block = next;
    }
}

Worker::Group Worker::group(int index) const {
    const int begin = chunk_.vectors * index / groups(), end = chunk_.vectors * (index + 1) / groups();
    return {begin, end - begin};
}

void Worker::load_query(int64_t token, int head, uint32_t* words) const {
    const Tensor& q = call_.args.q;
    const char* row = address(q, token, head);
    if (plan_.micro.values_per_word == 1)
        return load_row(q, row, plan_.width, reinterpret_cast<float*>(words));
    if (q.dtype == SMLA_BF16) {
        std::memcpy(words, row, size_t(plan_.width) * 2);
        return;
    }
    for (int s = 0; s < plan_.steps; ++s) {  // e4m3 values are bf16 values
        const auto bits = [&](int d) { return std::bit_cast<uint32_t>(kE4m3Values[uint8_t(row[d])]); };
        words[s] = bits(2 * s) >> 16 | (bits(2 * s + 1) & 0xffff0000u);
    }
}

// Returns a vector of heads from `first` on as rows of words, `stride` words apart. Lanes without a head are
// zeros.
const uint32_t* Worker::stage(int64_t token, int first, int& stride) {
    const int lanes = plan_.micro.lanes, steps = plan_.steps;
    const Tensor& q = call_.args.q;
    const bool words = q.dtype == (plan_.micro.values_per_word == 2 ? SMLA_BF16 : SMLA_F32);
    const char* rows = address(q, token, chunk_.first_head + first);
    // the stride of a single head is meaningless and may be any number
    const int64_t bytes = q.shape[1] > 1 ? q.stride_elems[1] * dtype_bits(q.dtype) / 8 : 0;
    if (words && first + lanes <= chunk_.heads && bytes % 4 == 0 && bytes < INT32_MAX &&
        reinterpret_cast<uintptr_t>(rows) % 4 == 0) {
        stride = int(bytes / 4);  // the rows in place
        return reinterpret_cast<const uint32_t*>(rows);
    }
    for (int lane = 0; lane < lanes; ++lane) {
        uint32_t* row = scratch_.staging + int64_t(lane) * steps;
        if (first + lane < chunk_.heads) load_query(token, chunk_.first_head + first + lane, row);
        else std::memset(row, 0, size_t(steps) * sizeof *row);
    }
    stride = steps;
    return scratch_.staging;
}

// Packs [head][step] to [step / 2][head][2], with zeros for missing heads.
void Worker::pack_few_queries(int64_t token) {
    const int lanes = plan_.micro.lanes, pairs = plan_.steps / 2;
    std::memset(scratch_.q, 0, size_t(pairs * lanes) * sizeof *scratch_.q);
    plan_.micro.fetch(prefetch_, int(prefetch_lines_));
    for (int head = 0; head < chunk_.heads; ++head) {
        load_query(token, chunk_.first_head + head, scratch_.staging);
        for (int pair = 0; pair < pairs; ++pair)
            std::memcpy(scratch_.q + pair * lanes + 2 * head, scratch_.staging + 2 * pair,
                        2 * sizeof *scratch_.q);
    }
}

// Packs [head][step] to [step][head].
void Worker::pack_queries(int64_t token) {
    if (plan_.few_heads) return pack_few_queries(token);
    const int lanes = plan_.micro.lanes, steps = plan_.steps;
    const int share = int(ceil_div(prefetch_lines_, chunk_.vectors));
    for (int g = 0; g < groups(); ++g) {
        const Group group = this->group(g);
        const int side = side_by_side(group);
        for (int v = 0; v < group.vectors; ++v) {
            int stride;
            const uint32_t* rows = stage(token, (group.first_vector + v) * lanes, stride);
            plan_.micro.fetch(prefetch_, share);
            const int first = v / side * side;  // first of the interleaved vectors
            uint32_t* out = scratch_.q + int64_t(steps) * (group.first_vector + first) * lanes;
            plan_.micro.transpose(rows, stride, steps, out + (v - first) * lanes, int64_t(side) * lanes);
        }
    }
}

bool Worker::next_block(Block& block) const {
    while (block.source + 1 < call_.source_count && block.begin >= ends_[block.source]) ++block.source;
    const int64_t left = std::max<int64_t>(std::min(ends_[block.source], end_) - block.begin, 0);
    block.count = int(left <= plan_.micro.block.last ? left : plan_.micro.block.usual);
    return block.count > 0;
}

void Worker::locate(const Block& block, int buffer) {
    call_.sources[block.source].locate(scratch_.rows + block.begin, block.count,
                                       scratch_.addresses + buffer * plan_.micro.block.last);
}

// Spreads the lines of the next block over the score products of this block.
void Worker::plan_prefetch(bool any, const Block& next, int buffer) {
    prefetch_ = {};
    prefetch_lines_ = 0;
    if (!any) return;
    const Source& source = call_.sources[next.source];
    prefetch_.next = scratch_.addresses + buffer * plan_.micro.block.last;
    prefetch_.end = prefetch_.next + next.count;
    prefetch_.row_bytes = source.row_bytes();
    prefetch_lines_ = int64_t(next.count) * source.row_lines();
    int64_t chances = 1;
    for (int g = 0; g < groups(); ++g)
        chances += int64_t(plan_.steps / kPrefetchSteps) * (next.count / plan_.key_tile(group(g).vectors));
    // With few heads, decoding takes most of the time and fetches a proportional share of the lines.
    const float decode = chunk_.vectors <= kFewVectors ? plan_.micro.decode_time : 0;
    const int64_t decoding = int64_t(float(prefetch_lines_) * decode / (decode + float(chunk_.vectors)));
    prefetch_.per_pair = int(ceil_div(decoding, (next.count + 1) / 2));
    // A value product that fetches gets half of the other lines. Its own operands need the line buffers as
    // much as the score product's do.
    const int64_t others = prefetch_lines_ - decoding, in_values = plan_.micro.value_steps ? others / 2 : 0;
    prefetch_.per_step = int(ceil_div(others - in_values, chances));
    if (in_values == 0) return;
    const int64_t value_chances = plan_.value_tiles * ceil_div(chunk_.vectors, plan_.micro.value_heads) *
                                  ceil_div(ceil_div(next.count, 2), plan_.micro.value_steps);
    prefetch_.per_value = int(ceil_div(in_values, value_chances));
}

bool Worker::weigh(const Block& block, int buffer, bool first) {
    const Source& source = call_.sources[block.source];
    scaling_ = source.scaled() ? Scaling::exponent : Scaling::words;
    tiles_ = 0;
    if (!decode_and_score(block, buffer)) {
        scaling_ = source.rounded() ? Scaling::words : Scaling::product;
        tiles_ = source.rounded() ? 0 : source.tiles();
        decode_and_score(block, buffer);
    }
    bool rescale = false;
    for (int g = 0; g < groups(); ++g) {
        if (groups() > 1) score(source, group(g), block, 0, block.count);
        rescale |= softmax(group(g), block.count, first);
    }
    return rescale;
}

// With one group of heads, keys are scored while they are in L1. With several groups, the buffer for scores
// has room for only one.
bool Worker::decode_and_score(const Block& block, int buffer) {
    const bool one = groups() == 1;
    const int part = one ? plan_.micro.block.part_of(chunk_.vectors) : block.count;
    for (int begin = 0; begin < block.count; begin += part) {
        const int end = std::min(begin + part, block.count);
        if (!decode(block, buffer, begin, end)) return false;
        if (one) score(call_.sources[block.source], group(0), block, begin, end);
    }
    return true;
}

bool Worker::decode(const Block& block, int buffer, int begin, int end) {
    const Source& source = call_.sources[block.source];
    DecodeArgs args{};
    args.keys = scratch_.addresses + buffer * plan_.micro.block.last + begin;
    args.count = end - begin;
    args.padded = 0;
    for (int g = 0; g < groups(); ++g)
        args.padded = std::max(args.padded, padded(block, group(g), begin, end));
    args.width = plan_.width;
    args.row_lines = source.row_lines();
    args.prefetch = &prefetch_;
    args.value_tiles = plan_.value_tiles;
    args.rounded = source.rounded();
    args.scale = source.scale();
    args.scaling = scaling_;
    args.row_words = plan_.row_words;
    args.keys_out = keys_at(begin);
    if (plan_.micro.values_per_word == 2) {  // plain arithmetic has neither
        args.values_out = scratch_.values + begin / 2 * plan_.micro.value_tile;
        args.tile_scales = scratch_.tile_scales + begin;
    }
    return source.decode(scratch_.rows + block.begin + begin, args);
}

// Paired arithmetic reads keys once, for the scores, so parts share one buffer. Plain arithmetic also reads
// values from the keys.
uint32_t* Worker::keys_at(int begin) const {
    const bool shared = plan_.micro.values_per_word == 2 && groups() == 1;
    return scratch_.keys + (shared ? 0 : begin * plan_.row_words);
}

void Worker::score(const Source& source, const Group& group, const Block& block, int begin, int end) {
    const Micro& micro = plan_.micro;
    const bool paired = micro.values_per_word == 2;
    const int64_t first_lane = int64_t(group.first_vector) * micro.lanes;
    ScoreArgs args{};
    args.q = scratch_.q + plan_.steps * first_lane;
    args.keys = keys_at(begin);
    args.score_stride = score_stride(group);
    args.scores = scratch_.scores + (paired ? 0 : first_lane) + begin * args.score_stride;
    args.prefetch = &prefetch_;
    args.row_words = plan_.row_words;
    args.q_vector = int64_t(plan_.steps) * micro.lanes;
    args.score_vector = micro.block.last * args.score_stride;
    args.keys_padded = padded(block, group, begin, end);
    const auto product = plan_.few_heads ? micro.score_few : micro.score[group.vectors - 1];
    for (int tile = 0; tile < tiles_; ++tile) {
        args.begin = tile * source.tile_words();
        args.end = args.begin + source.tile_words();
        args.scales = scratch_.tile_scales + tile * plan_.micro.block.last + begin;
        args.accumulate = tile > 0;
        product(args);
    }
    args.begin = args.end;
    args.end = plan_.steps;
    args.scales = nullptr;
    args.accumulate = args.begin > 0;
    if (args.begin < args.end) product(args);
}

int64_t Worker::score_stride(const Group& group) const {
    return int64_t(plan_.micro.values_per_word == 2 ? side_by_side(group) : chunk_.vectors) *
           plan_.micro.lanes;
}

int Worker::side_by_side(const Group& group) const { return plan_.micro.vectors_apart ? 1 : group.vectors; }

bool Worker::softmax(const Group& group, int count, bool first) {
    const Micro& micro = plan_.micro;
    const int64_t first_lane = int64_t(group.first_vector) * micro.lanes;
    SoftmaxArgs args{};
    args.scores = scratch_.scores + (micro.values_per_word == 2 ? 0 : first_lane);
    args.score_stride = score_stride(group);
    args.score_vector = micro.block.last * args.score_stride;
    args.weights = scratch_.weights + first_lane;
    args.weight_stride = int64_t(chunk_.vectors) * micro.lanes;
    args.tile_scales = scratch_.tile_scales;
    args.peak = out_.peak + first_lane;
    args.sum = out_.sum + first_lane;
    args.alpha = scratch_.alpha + first_lane;
    args.factor = call_.factor;
    args.keys = count;
    args.tiles = tiles_;
    args.vectors = group.vectors;
    args.first = first;
    return micro.softmax(args);
}

void Worker::accumulate(const Block& block, Carry carry) {
    const Micro& micro = plan_.micro;
    const Source& source = call_.sources[block.source];
    const bool paired = micro.values_per_word == 2;
    const int64_t chunk_lanes = int64_t(chunk_.vectors) * micro.lanes;
    ValueArgs args{};
    args.weight_stride = chunk_lanes;
    args.alpha = scratch_.alpha;
    args.steps = paired ? (block.count + 1) / 2 : block.count;
    args.heads = chunk_.heads;
    args.carry = carry;
    args.prefetch = &prefetch_;
    args.value_stride = paired ? micro.value_tile : plan_.row_words;
    for (int tile = 0; tile < plan_.value_tiles; ++tile) {
        args.values = paired ? scratch_.values + int64_t(tile) * micro.value_words
                             : scratch_.keys + int64_t(tile) * micro.value_tile;
        const int scaled = tiles_ ? tile * micro.value_tile / (2 * source.tile_words()) : 0;
        args.weights = scratch_.weights + scaled * (micro.block.last / 2) * chunk_lanes;
        args.out = out_.out + tile * plan_.tile_stride(chunk_.heads);
        micro.values(args);
    }
}

}  // namespace smla::cpu_attend
