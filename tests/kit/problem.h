// One call of a stage on random and hostile data, and what must come of it: computed once with the reference
// in double, compared with what every kernel makes of it.
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

// Sums of n terms in f32: each rounding is at most u = 2^-24 of a partial sum, and their signs do not depend
// on each other, so that together they grow as u * sqrt(n) * sum |terms| (Higham and Mary 2019), in whatever
// order terms are added. Twice that is allowed. Roundings of terms that are one number again and again have
// one sign: together they grow as u * n.
constexpr double kF32 = 0x1p-24;
double sum_error(int64_t terms, bool equal_terms);
// Largest relative error of rounding to a type, and its smallest step.
double rounding(smla_dtype dtype);
double smallest_step(smla_dtype dtype);

// What is compared, and the worst of it as a share of what is allowed: above 1 is a miss.
class Comparison {
public:
    // Element by element; NaN must meet NaN, an infinity itself. The bound of element i, in order.
    void close(const char* name, const Tensor& got, const std::vector<double>& want,
               const std::function<double(size_t)>& bound);
    // Rows of the last dimension in the L2 norm; a row with NaN or infinities element by element.
    void rows_close(const char* name, const Tensor& got, const std::vector<double>& want,
                    const std::function<double(size_t)>& bound_of_row);
    // The same numbers, but for the sign of a zero.
    void equal(const char* name, const Tensor& got, const std::vector<double>& want);
    void equal_bytes(const char* name, const std::vector<uint8_t>& got, const std::vector<uint8_t>& want);
    void check(bool holds, const std::string& what);  // a miss unless it holds
    // One number; NaN must meet NaN, an infinity itself.
    void near(double got, double want, double bound, const std::string& what);
    void note(double error, double bound, const std::string& what);

    double worst = 0;
    std::string what;  // of the worst
};

class Problem;

// How a problem is drawn.
struct Draw {
    uint64_t seed = 0;
    // Widths, dtypes and aligned memory of a served model, which specialised kernels want; else anything
    // goes.
    bool of_model = false;
    // Few tokens, short lists, narrow rows: for fuzzers, which want many problems a second.
    bool small = false;
    bool walls = false;  // memory ends where a page begins that nobody may touch
    // Asked when shapes, strides and addresses are drawn and values are not yet. Empty: every problem is
    // wanted.
    std::function<bool(const Problem&)> wanted;
};

class Problem {
public:
    explicit Problem(const Draw& draw);
    virtual ~Problem() = default;
    virtual Stage stage() const = 0;
    virtual void* arguments() = 0;  // the stage's struct
    // Finds out from the arguments and what their memory holds what may be written and what must come of the
    // call, and keeps that memory for reset(). To be called again when one or the other has been changed.
    virtual void expect() = 0;
    // Every kernel of the engine, and why it refuses this problem.
    virtual std::vector<Verdict> kernels(const Env& env) const = 0;
    // Runs a kernel in poisoned scratch of exactly the size that it asks for within `budget`; what it must
    // not have written is looked at too.
    virtual void run(Context& context, const std::string& kernel, size_t budget, Comparison& out) = 0;
    virtual void compare(const std::string& kernel, Comparison& out) const = 0;

    Random random;
    HostileMemory memory;
    std::string description;  // of its shape

    bool alone = false;    // run() compares the call with no other stage's
    bool beside = false;   // Env::beside of run()
    bool repeats = false;  // inputs repeat elements: what is summed may be one number again and again
    double sum_error(int64_t terms) const { return kit::sum_error(terms, repeats); }

    bool given_up() const { return given_up_; }

protected:
    // Constructors return where this is true: the problem is then incomplete and must not be run.
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

// Host arguments on the engine's device, in poisoned scratch, whatever kernel takes them; results come back.
// Throws if the kernel left counters or wrote outside its workspace.
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

// A problem of the stage; null if the draw does not want it.
std::unique_ptr<Problem> make_problem(Stage stage, const Draw& draw);
using MakeProblem = std::unique_ptr<Problem>(Stage stage, const Draw& draw);
MakeProblem make_norm, make_rope, make_project, make_quant_index_q, make_write, make_save_state,
    make_compress, make_gather, make_copy_pages, make_map, make_score, make_select, make_score_select,
    make_score_select_blocks, make_attend, make_merge;

}  // namespace smla::kit
