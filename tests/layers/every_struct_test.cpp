// What holds for every struct of the C ABI, held to the record of the headers: strides that are all zero mean
// dense in every tensor, reserved members are 0, and the first size of what the library fills in stays.
#include "api/guard.h"
#include "core/stage.h"
#include "fixture.h"
#include "kit/refused.h"
#include "ops/ops.h"

#include <smla/smla.h>

#include <nlohmann/json.hpp>

#include <fstream>
#include <map>
#include <set>

namespace smla::layers_test {
namespace {

using nlohmann::json;
using Offsets = std::set<int64_t>;

// Where the library resolves strides.
template <class Args>
Offsets resolved() {
    Args args{};
    Offsets out;
    const auto note = [&](Tensor& tensor) {
        out.insert(reinterpret_cast<char*>(&tensor) - reinterpret_cast<char*>(&args));
    };
    if constexpr (requires { api::each_tensor(args, note); }) api::each_tensor(args, note);
    else visit(args, note, [](smla_cache&) {});
    return out;
}

// The field that reading arguments refuses where `reserved` is not 0; "none" without such a member.
template <class Args>
std::string refused_reserved() {
    if constexpr (requires(Args args) { args.reserved; }) {
        Args args{};
        args.struct_size = sizeof args;
        args.reserved = 1;
        return kit::refused_field([&] { api::read_args(&args); });
    }
    return "none";
}

struct OfStruct {
    Offsets resolved;
    std::string reserved;
};
#define NAMED(args) {#args, {resolved<args>(), refused_reserved<args>()}},
#define NAMED_STAGE(name, args) NAMED(args)
const std::map<std::string, OfStruct>& all_structs() {
    static const std::map<std::string, OfStruct> all{SMLA_STAGES(NAMED_STAGE)          // of stages
                                                     NAMED(smla_plan_batch)            //
                                                     NAMED(smla_backend_forward_args)  //
                                                     NAMED(smla_layer_step)            //
                                                     NAMED(smla_session_step)          //
                                                     NAMED(smla_request_rows_args)     //
                                                     NAMED(smla_split_context_args)    //
                                                     NAMED(smla_combined_rows_args)    //
                                                     NAMED(smla_mixed_rows_args)       //
                                                     NAMED(smla_decode_schedule_args)  //
                                                     NAMED(smla_prefill_chunks_args)};
    return all;
}

// Where a struct of the record, or one inside of it, has a tensor.
void add_tensors(const json& structs, const std::string& name, int64_t at, Offsets& out) {
    for (const auto& [field, place] : structs[name]["fields"].items()) {
        const int64_t offset = at + place[0].get<int64_t>();
        const auto type = place[1].get<std::string>();
        if (type == "smla_tensor") out.insert(offset);
        else if (structs.contains(type)) add_tensors(structs, type, offset, out);
    }
}

json recorded_structs() {
    std::ifstream file(SMLA_SOURCE_DIR "/tests/abi/0.1.0.json");
    return json::parse(file)["structs"];
}

TEST(EveryStruct, HasZeroStridesResolvedInItsTensors) {
    const json structs = recorded_structs();
    size_t found = 0;
    for (const auto& [name, record] : structs.items()) {
        if (!record["fields"].contains("struct_size")) continue;  // inside of another, or one in a list
        Offsets has;
        add_tensors(structs, name, 0, has);
        if (has.empty()) continue;
        ++found;
        ASSERT_TRUE(all_structs().contains(name)) << name;
        EXPECT_EQ(all_structs().at(name).resolved, has) << name;
    }
    EXPECT_EQ(found, all_structs().size());
}

TEST(EveryStruct, RefusesWhatIsReserved) {
    const json structs = recorded_structs();
    int found = 0;
    for (const auto& [name, record] : structs.items()) {
        if (!record["fields"].contains("reserved") || name == "smla_stage_field") continue;  // filled in
        ++found;
        if (name == "smla_backend_args") {  // has no tensors
            EXPECT_EQ(refused_reserved<smla_backend_args>(), "args.reserved");
            continue;
        }
        ASSERT_TRUE(all_structs().contains(name)) << name;
        EXPECT_EQ(all_structs().at(name).reserved, "args.reserved") << name;
    }
    EXPECT_GE(found, 12);
}

TEST(EveryStruct, ThatIsFilledInKeepsItsFirstSize) {
    const json structs = recorded_structs();  // of the first version
    const std::map<std::string, size_t> first{{"smla_device_info", api::kFirstSize<smla_device_info>},
                                              {"smla_backend_info", api::kFirstSize<smla_backend_info>},
                                              {"smla_cache_shape", api::kFirstSize<smla_cache_shape>},
                                              {"smla_format_info", api::kFirstSize<smla_format_info>},
                                              {"smla_layer_info", api::kFirstSize<smla_layer_info>},
                                              {"smla_session_args", api::kFirstSize<smla_session_args>},
                                              {"smla_stage_field", api::kFirstSize<smla_stage_field>}};
    for (const auto& [name, size] : first) EXPECT_EQ(size, structs[name]["size"]) << name;
}

// A struct that has grown by `added` since its first version.
struct Grown {
    uint32_t struct_size;
    int32_t value;
    int32_t added;
};

}  // namespace
}  // namespace smla::layers_test

template <>
inline constexpr size_t smla::api::kFirstSize<smla::layers_test::Grown> = 8;

namespace smla::layers_test {
namespace {

TEST(EveryStruct, ThatIsFilledInMayBeOlderOrNewer) {
    struct Room {
        Grown grown{0, -1, -1};
        int32_t behind = -1;
    };
    for (const uint32_t size : {8u, 12u, 16u}) {
        Room room;
        room.grown.struct_size = size;
        api::give("out", &room.grown, {sizeof(Grown), 5, 6});
        EXPECT_EQ(room.grown.struct_size, size);
        EXPECT_EQ(room.grown.value, 5);
        EXPECT_EQ(room.grown.added, size < 12 ? -1 : 6);
        EXPECT_EQ(room.behind, -1);
    }
    Grown small{7, -1, -1};
    EXPECT_THROW(api::give("out", &small, {sizeof(Grown), 5, 6}), Error);
    EXPECT_EQ(small.value, -1);
}

TEST(EveryStruct, ATensorByItselfHasZeroStridesResolved) {
    smla_tensor dense = make_tensor(static_cast<void*>(nullptr), SMLA_F32, {2, 3}), zero = dense;
    zero.stride_elems[0] = zero.stride_elems[1] = 0;
    size_t bytes = 0;
    EXPECT_EQ(smla_tensor_bytes(&dense, &bytes), SMLA_OK);
    EXPECT_EQ(bytes, 24u);
    EXPECT_EQ(smla_tensor_bytes(&zero, &bytes), SMLA_OK);
    EXPECT_EQ(bytes, 24u);
    const float log2_lse[6] = {1, 2, 3, 4, 5, 6};
    float lse[6] = {}, wanted[6] = {};
    zero.data = const_cast<float*>(log2_lse);
    smla_tensor out = zero;
    out.data = lse;
    EXPECT_EQ(smla_lse_from_log2(&zero, &out), SMLA_OK);
    dense.data = const_cast<float*>(log2_lse);
    smla_tensor out_dense = dense;
    out_dense.data = wanted;
    EXPECT_EQ(smla_lse_from_log2(&dense, &out_dense), SMLA_OK);
    for (int i = 0; i < 6; ++i) EXPECT_EQ(lse[i], wanted[i]) << i;
    EXPECT_NE(wanted[5], 0);
}

}  // namespace
}  // namespace smla::layers_test
