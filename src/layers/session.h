// A session: one layer with its own caches for a number of requests. A session allocates pages, builds each
// step's plan and runs the layer. Sessions serve tools, examples and bindings; an inference engine has its
// own caches and calls the layer.
#pragma once

#include "core/in_use.h"
#include "layers/cache_layout.h"
#include "layers/layer.h"
#include "layers/staging.h"
#include "plan/plan.h"

#include <smla/layer.h>

#include <random>
#include <span>

namespace smla {

class Session;
// Address and users of a session, for sessions that read it. Resizing a session replaces the address;
// destroying it sets null.
struct SessionPlace {
    explicit SessionPlace(const Session* at) : session(at) {}

    const Session* session;
    Users users;
};

struct SessionOptions {
    CacheChoice caches;
    int32_t max_requests = 1;
    int32_t max_tokens = 4096;      // per request, prompt and decoded tokens
    int32_t max_step_tokens = 512;  // tokens of all requests in one step
    int32_t rewind_tokens = 0;      // tokens before the last step that truncate() may remove
    size_t stage_budget = 0;        // scratch bytes per stage; 0: as many as improve speed
    // Place of the session whose layer wrote the entries that this layer reads (V4.1; LayerSources::entries),
    // and which runs each step before this session. Null if the layer reads its own entries.
    std::shared_ptr<SessionPlace> entries_of;
    uint64_t page_seed = 1;  // seed for shuffling pages, so that nothing relies on their order
};

using StepRequest = smla_step_request;

class Session {
public:
    Session(Context& context, const Layer& layer, const SessionOptions& options);
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    struct Step {
        std::span<const StepRequest> requests;
        // Tensors on the host or on the context's device.
        Tensor hidden{};          // [T,hidden], ordered by request
        Tensor out{};             // [T,hidden]
        Tensor rope_positions{};  // [T] i32 or i64, optional; default: order in the request
        Tensor forced_topk{};     // [T,k] i32: see LayerStep; required by shared layers
        Tensor candidates{};      // [T,B] i32: see LayerStep; from the layer that selects them
        const Tap* tap = nullptr;
    };
    void forward(const Step& step);

    // Selected positions of the last step, [T,k] i32 on the host, valid until the next step, for layers that
    // share them. Absent without an indexer; no rows after a failed step.
    Tensor topk() const;
    Tensor candidates() const;  // likewise, the selected blocks
    void check_request(const char* field, int32_t request) const;
    int32_t length(int32_t request) const { return lengths_[size_t(request)]; }
    void end_request(int32_t request);  // frees its pages
    // Drops all but the first `tokens` tokens of a request. Window caches only reach back over the last step
    // and rewind_tokens before it.
    void truncate(int32_t request, int32_t tokens);
    // Copies request `source`, including its pages, to `target`, whose old content is dropped.
    void copy_request(int32_t source, int32_t target);
    // Gives each request i the old content of request sources[i], which may be listed several times.
    void reorder(std::span<const int32_t> sources);
    // Returns another session of this layer with all requests, formats and page_tokens of this one.
    std::unique_ptr<Session> clone(const SessionOptions& options) const;
    // Makes sessions that read `other` read this one.
    void replace(Session& other);
    const std::shared_ptr<SessionPlace>& place() const { return place_; }

    const Layer& layer() const { return layer_; }
    const SessionOptions& options() const { return options_; }
    const std::vector<CacheNeed>& needs() const { return needs_; }
    size_t cache_bytes() const;
    size_t workspace_bytes() const { return workspace_bytes_; }
    StageRecords records{};  // totals of all steps so far

private:
    // The block table of a cache group in this step.
    struct StepTable {
        std::vector<int32_t> blocks;  // [R,MB]
        Tensor placed{};              // where the layer runs
        int64_t columns = 0;
    };
    // Pages of one cache group: a pool, and the pages of each request.
    struct Group {
        CacheNeed need{};
        smla_cache cache{};
        std::shared_ptr<void> memory;  // of the cache
        std::vector<int32_t> free_pages;
        std::vector<std::vector<int32_t>> pages;  // by request; -1: returned to the pool
        StepTable table;
    };
    // A cache group of the session whose entries this session reads.
    struct ReadGroup {
        int32_t bit;
        StepTable table;
    };

    struct Move {
        int32_t from, to;
    };

    void check_options() const;
    void check_entries_of() const;
    void create_group(const CacheNeed& need, std::mt19937_64& random);
    static int32_t take_page(Group& group);
    static void give_back(Group& group, std::vector<int32_t>& pages, int64_t first, int64_t last);
    void fit_pages(Group& group, const StepRequest& request);
    void cut_pages(int32_t request, int32_t tokens);
    int32_t shortest(int32_t request) const;
    void rearrange(std::span<const Move> moves);
    static std::vector<int32_t> duplicate(Group& group, const std::vector<int32_t>& pages, int64_t first,
                                          std::vector<int32_t>& pairs);
    void copy_pages(const smla_cache& source, const smla_cache& target, std::vector<int32_t>& pairs);
    void check(const Step& step) const;
    void check_sources(const Step& step, int64_t tokens) const;
    void check_forced_entries(const Step& step, int64_t tokens) const;
    void build_plan(const Step& step);
    StepTable make_table(const CacheNeed& need) const;
    void place_table(StepTable& table, const Group& group, std::span<const StepRequest> requests);
    const Session& entries_of() const { return *options_.entries_of->session; }
    LayerStep layer_step(const Step& step);
    const Group* find_group(int32_t bit) const;  // null if the layer has none
    CacheGroup cache_group(int32_t bit, const Tensor& slots) const;
    Step largest_step() const;
    size_t largest_workspace(Step largest);
    void reserve_staging(const Step& largest);
    Tensor host_topk(int64_t tokens) const;
    Tensor host_candidates(int64_t tokens) const;
    Tensor fetched(Tensor& placed, const Tensor& host) const;
    bool reads_entries() const { return sources_.entries >= 0 && sources_.entries != layer_.layer_index(); }
    bool names_candidates() const { return sources_.candidates == layer_.layer_index(); }
    bool reads_candidates() const { return sources_.candidates >= 0 && !names_candidates(); }
    int64_t step_tokens(const Step& step) const;

    Context& context_;
    const Layer& layer_;
    SessionOptions options_;
    std::shared_ptr<SessionPlace> place_ = std::make_shared<SessionPlace>(this);
    std::vector<CacheNeed> needs_;
    std::vector<Group> groups_;
    std::vector<ReadGroup> read_groups_;
    std::vector<int32_t> lengths_;
    std::unique_ptr<Plan> plan_;
    std::vector<int32_t> query_start_loc_, seq_lens_, topk_, candidates_;
    LayerSources sources_;
    int64_t last_tokens_ = 0;
    // Results of the last step, up to 8 MB, that stay on the GPU until topk() or candidates() copies them,
    // because few callers need them.
    mutable Tensor placed_topk_{}, placed_candidates_{};
    Staging staging_;
    OwnedWorkspace workspace_;
    size_t workspace_bytes_ = 0;
};

}  // namespace smla
