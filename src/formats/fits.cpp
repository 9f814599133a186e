#include "formats/fits.h"

#include <utility>

namespace smla {

std::string why_not_width(smla_format id, int64_t width) {
    const Format& format = *find_format(id);
    if (format.width == 0 || format.width == width) return "";
    return text("a format for ", width, " values (the width of the layer); ", format.name, " has ",
                format.width);
}

std::string why_not_writer(const Format& format, smla_writer writer) {
    if ((writer & ~format.writers) == 0) return "";
    if (!format.writers) return text("0, because ", format.name, " has no writer variants");
    std::string out = "0";
    for (const auto& [bit, name] : {std::pair(SMLA_WRITER_SCALE_FLOOR, "SMLA_WRITER_SCALE_FLOOR"),
                                    {SMLA_WRITER_BF16_FIRST, "SMLA_WRITER_BF16_FIRST"},
                                    {SMLA_WRITER_TIES_TO_ZERO, "SMLA_WRITER_TIES_TO_ZERO"},
                                    {SMLA_WRITER_BF16_POOLED, "SMLA_WRITER_BF16_POOLED"},
                                    {SMLA_WRITER_FP4_VALUES, "SMLA_WRITER_FP4_VALUES"}})
        if (format.writers & bit) out += text(" or ", name, " (", bit, ")");
    return text(out, " for ", format.name);
}

std::string why_not_record(smla_format id, int64_t width, int64_t rope, bool hybrid) {
    if (std::string reason = why_not_width(id, width); !reason.empty()) return reason;
    if (id == SMLA_FP8_656 && (hybrid || rope != 64))
        return "fp8_656 stores the 512 latent and 64 RoPE values of V3.2 and GLM";
    if (id == SMLA_NVFP4_352 && (hybrid || rope != 64))
        return "nvfp4_352 stores the 512 latent and 64 RoPE values of V3.2 and GLM";
    if (id == SMLA_NVFP4_384 && (!hybrid || rope != 64))
        return "nvfp4_384 stores the 448 plain and 64 RoPE values of V4";
    if (id == SMLA_FP8_584 && (!hybrid || rope != 64))
        return "fp8_584 stores the 448 plain and 64 RoPE values of V4";
    if (id == SMLA_FP8_528 && hybrid) return "fp8_528 stores latent rows without RoPE";
    return "";
}

}  // namespace smla
