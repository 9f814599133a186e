// The dtype names of the safetensors format.
#pragma once

#include <smla/types.h>

#include <string_view>

namespace smla {

struct SafetensorsDtype {
    std::string_view name;
    int bytes;
    smla_dtype dtype;  // 0: in the format, but unsupported
};

// The first row of a dtype has the name used for writing.
constexpr SafetensorsDtype kSafetensorsDtypes[] = {{"F64", 8, SMLA_F64},
                                                   {"F32", 4, SMLA_F32},
                                                   {"F16", 2, SMLA_F16},
                                                   {"BF16", 2, SMLA_BF16},
                                                   {"F8_E4M3", 1, SMLA_E4M3},
                                                   {"F8_E8M0", 1, SMLA_E8M0},
                                                   {"I64", 8, SMLA_I64},
                                                   {"I32", 4, SMLA_I32},
                                                   {"U8", 1, SMLA_U8},
                                                   {"I8", 1, SMLA_U8},
                                                   {"BOOL", 1, 0},
                                                   {"F8_E5M2", 1, 0},
                                                   {"I16", 2, 0},
                                                   {"U16", 2, 0},
                                                   {"U32", 4, 0},
                                                   {"U64", 8, 0},
                                                   {"C64", 8, 0}};

constexpr const SafetensorsDtype* find_safetensors_dtype(std::string_view name) {
    for (const SafetensorsDtype& each : kSafetensorsDtypes)
        if (each.name == name) return &each;
    return nullptr;
}
constexpr const SafetensorsDtype* find_safetensors_dtype(smla_dtype dtype) {
    for (const SafetensorsDtype& each : kSafetensorsDtypes)
        if (each.dtype == dtype && dtype != 0) return &each;
    return nullptr;
}

}  // namespace smla
