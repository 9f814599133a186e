// Common part of prepared stage and backend calls: the addresses that each run provides.
#pragma once

#include "api/guard.h"

#include <smla/prepared_call.h>

struct smla_call {
    // `args` are the arguments of the call, `fields` the addresses in them.
    smla_call(std::span<const smla::StageField> fields, const void* args, const size_t* moving,
              int32_t count);
    virtual ~smla_call() = default;
    virtual void run(const void* const* addresses, const smla::Workspace& workspace,
                     smla_stream stream) const = 0;

    size_t bytes = 0;  // required workspace

protected:
    // Writes the addresses of a run into a copy of the arguments.
    void place(void* args, const void* const* addresses) const;

private:
    struct Moving {
        size_t offset;
        std::string name;  // "args.q.data"
        bool may_be_null;
    };
    std::vector<Moving> moving_;
};
