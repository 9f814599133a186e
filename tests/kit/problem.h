// One call of a stage with random and hostile data, and its expected results, which are computed once by the
// reference in double and compared with the results of every kernel.
#pragma once

#include "engines/context.h"
#include "engines/placed.h"
#include "engines/run.h"
#include "kit/hostile_memory.h"
#include "kit/scratch.h"

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace smla::kit {

// Error of f32 sums of n terms. Each rounding is at most u = 2^-24 of a partial sum. Signs of roundings are
// independent, so that the total grows as u * sqrt(n) * sum |terms| (Higham and Mary 2019), in any order of
// the terms; twice that is allowed. If all terms are equal, all roundings have the same sign and the total
// grows as u * n.
constexpr double kF32 = 0x1p-24;
double sum_error(int64_t terms, bool equal_terms);
// Largest relative error of rounding to a type, and the smallest step of the type.
double rounding(smla_dtype dtype);
double smallest_step(smla_dtype dtype);

// Compares results and records the largest error as a share of its bound; above 1, the comparison fails.
class Comparison {
public:
    // Compares element by element; NaN must match NaN, an infinity must match itself. Takes the bounds of the
    // elements in order.
    void close(const char* name, const Tensor& got, const std::vector<double>& want,
               const std::function<double(size_t)>& bound);
    // Compares rows of the last dimension in the L2 norm; a row with NaN or infinities element by element.
    void rows_close(const char* name, const Tensor& got, const std::vector<double>& want,
                    const std::function<double(size_t)>& bound_of_row);
    // Requires equal numbers, except for the sign of a zero.
    void equal(const char* name, const Tensor& got, const std::vector<double>& want);
    void equal_bytes(const char* name, const std::vector<uint8_t>& got, const std::vector<uint8_t>& want);
    void check(bool holds, const std::string& what);  // fails if `holds` is false
    // Compares one number; NaN must match NaN, an infinity must match itself.
    void near(double got, double want, double bound, const std::string& what);
    void note(double error, double bound, const std::string& what);

    double worst = 0;
    std::string what;  // description of the largest error
};

class Problem;

// Options for drawing a problem.
struct Draw {
    uint64_t seed = 0;
    // Widths, dtypes and aligned memory of a served model, which specialized kernels require; otherwise any.
    bool of_model = false;
    // Few tokens, short lists and narrow rows, for fuzzers, which run many problems per second.
    bool small = false;
    bool walls = false;  // memory ends at an inaccessible page
    // Returns whether to keep a problem; called after shapes, strides and addresses are drawn, before values
    // are. If empty, all problems are kept.
    std::function<bool(const Problem&)> wanted;
};

class Problem {
public:
    explicit Problem(const Draw& draw);
    virtual ~Problem() = default;
    virtual Stage stage() const = 0;
    virtual void* arguments() = 0;  // the stage's argument struct
    // Computes the memory that may be written and the expected results from the arguments and their contents,
    // and saves the contents for reset(). Call again after changing arguments or contents.
    virtual void expect() = 0;
    // Returns all kernels of the engine, with the reasons why they do not support this problem.
    virtual std::vector<Verdict> kernels(const Env& env) const = 0;
    // Runs a kernel in poisoned scratch of exactly its size within `budget`, and checks that nothing else was
    // written.
    virtual void run(Context& context, const std::string& kernel, size_t budget, Comparison& out) = 0;
    virtual void compare(const std::string& kernel, Comparison& out) const = 0;

    Random random;
    HostileMemory memory;
    std::string description;  // shape of the problem

    bool alone = false;    // run() does not compare the call with calls of other stages
    bool beside = false;   // value of Env::beside in run()
    bool repeats = false;  // inputs repeat elements, so that the terms of a sum may be equal
    double sum_error(int64_t terms) const { return kit::sum_error(terms, repeats); }

    bool given_up() const { return given_up_; }

protected:
    // Returns whether the draw rejects the problem. The constructor then returns; the problem is incomplete
    // and must not be run.
    bool unwanted() { return given_up_ = draw_.wanted && !draw_.wanted(*this); }
    bool of_model() const { return draw_.of_model; }
    bool small() const { return draw_.small; }

private:
    Draw draw_;
    bool given_up_ = false;
};

template <Stage S>
class ProblemOf : public Problem {
public:
    explicit ProblemOf(const Draw& draw) : Problem(draw) { args.struct_size = sizeof args; }
    Stage stage() const override { return S; }
    void* arguments() override { return &args; }
    std::vector<Verdict> kernels(const Env& env) const override { return explain_stage<S>(args, env); }
    void run(Context& context, const std::string& kernel, size_t budget, Comparison& out) override;

    ArgsOf<S> args{};
};

// Runs a call with host arguments on the engine's device, in poisoned scratch, with any kernel, and copies
// results back. Throws if the kernel left counters nonzero or wrote outside its workspace.
template <Stage S>
void run_placed(const ArgsOf<S>& args, Env env) {
    const Placed<ArgsOf<S>> placed(*env.device, args);
    const Scratch scratch(*env.device, stage_workspace<S>(args, env, 0));
    env.workspace = scratch.get();
    run_stage<S>(placed.args, env);
    env.device->wait(nullptr);
    placed.copy_back();
    if (const std::string complaint = scratch.complaint(); !complaint.empty())
        throw std::runtime_error(complaint);
}

template <Stage S>
void ProblemOf<S>::run(Context& context, const std::string& kernel, size_t budget, Comparison& out) {
    Env env = context.env({});
    env.demanded[size_t(S)] = kernel;
    env.beside = beside;
    const Placed<ArgsOf<S>> placed(context.device(), args);
    const Scratch scratch(context.device(), stage_workspace<S>(args, env, budget));
    env.workspace = scratch.get();
    const std::string ran = [&] {
        const GuardedMemory::Closed closed(memory);
        return run_stage<S>(placed.args, env);
    }();
    context.device().wait(nullptr);
    placed.copy_back();
    out.check(ran == kernel, text("ran ", ran));
    const std::string complaint = scratch.complaint(), wrote = memory.forbidden_write();
    out.check(complaint.empty(), complaint);
    out.check(wrote.empty(), wrote);
}

// Returns a problem of the stage, or null if the draw rejects it.
std::unique_ptr<Problem> make_problem(Stage stage, const Draw& draw);
using MakeProblem = std::unique_ptr<Problem>(Stage stage, const Draw& draw);
MakeProblem make_norm, make_rope, make_project, make_quant_index_q, make_write, make_save_state,
    make_compress, make_gather, make_copy_pages, make_map, make_score, make_select, make_score_select,
    make_score_select_blocks, make_attend, make_merge;

}  // namespace smla::kit
