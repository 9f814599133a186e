// Copies of the block tables of a host batch, in memory sized for the maxima: host memory, or memory of the
// GPU whose kernels read the tables.
#pragma once

#include "backends/config.h"
#include "core/workspace.h"
#include "plan/plan.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace smla {

class BatchTables {
public:
    // Contains the tables that forward() reads; with `plan`, also the tables that a GPU plan is built from.
    BatchTables(const PlanMaxima& maxima, const BackendArgs& args, bool plan);

    size_t bytes() const;
    // Sets the memory of the copies, [bytes()] u8.
    void place(const Tensor& memory);
    // Throws if the pages of a batch are so small that its tables do not fit.
    void check(const PlanBatch& batch) const;
    // Copies all tables of a checked batch. `room(to, bytes)` returns the host memory for the copy whose
    // final address is `to`. Sets columns that the batch lacks to -1.
    template <class Room>
    void copy(const PlanBatch& batch, Room room) {
        for (const Table& table : tables_) {
            const Tensor& from = (batch.*table.member).block_table;
            const size_t blocks = size_t(table.shown.shape[0] * table.shown.stride_elems[0]);
            if (!present(from) || blocks == 0) continue;
            write(from, table.shown, room(table.shown.data, blocks * sizeof(int32_t)));
        }
    }
    // Sets the tables' shapes for this batch.
    void take_shapes(const PlanBatch& batch);

    // Returns the copy of a group's table, [R,columns]; absent if the last batch had none.
    Tensor shown(PlanGroup PlanBatch::*member) const;
    // Returns that table with all rows and columns that later batches of these page sizes may use, for
    // graphs.
    Tensor whole(PlanGroup PlanBatch::*member) const;

private:
    struct Table {
        PlanGroup PlanBatch::*member;
        const char* page_tokens_field;
        int64_t usual_page, tokens;  // tokens of a page and of the longest request
        size_t bytes;
        Tensor memory{}, shown{};  // shown: shape of the last batch
    };
    void add(PlanGroup PlanBatch::*member, const char* field, int64_t usual_page, int64_t tokens);
    static void write(const Tensor& from, const Tensor& shown, void* to);

    int64_t requests_;
    std::vector<Table> tables_;
};

}  // namespace smla
