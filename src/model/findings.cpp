#include "model/findings.h"

#include "core/visible.h"

#include <algorithm>

namespace smla {

namespace {
constexpr size_t kLongestText = 160;
constexpr size_t kMostFindings =
    128;  // more than the tensors of a layer; a hostile file could cause millions
}  // namespace

std::string printable(std::string_view raw) {
    std::string out;
    for (const char c : raw) {
        if (out.size() >= kLongestText) return out + "...";
        if (c >= 0x20 && c < 0x7f) out += c;
        else append_hex(out, c);
    }
    return out;
}

void Findings::add(std::string field, std::string got, std::string wanted) {
    if (list_.size() < kMostFindings) list_.push_back({std::move(field), std::move(got), std::move(wanted)});
}

void Findings::add(const Error& error) {
    if (error.status != SMLA_DATA_ERROR) status_ = error.status;
    if (!has(error.field)) add(error.field, error.got, error.wanted);
}

std::string in_quotes(std::string_view raw) { return text("\"", printable(raw), "\""); }

bool Findings::has(const std::string& field) const {
    return std::any_of(list_.begin(), list_.end(), [&](const Finding& each) { return each.field == field; });
}

void Findings::throw_if_any() const {
    if (list_.empty()) return;
    if (list_.size() == 1) fail(status_, source_ + ": " + list_[0].field, list_[0].got, list_[0].wanted);
    std::string fields, got, wanted;
    for (const Finding& each : list_) {
        const char* comma = fields.empty() ? "" : ", ";
        const char* semicolon = fields.empty() ? "" : "; ";
        fields += comma + each.field;
        got += semicolon + each.field + " " + each.got;
        wanted += semicolon + each.field + " " + each.wanted;
    }
    fail(status_, source_ + ": " + fields, got, wanted);
}

}  // namespace smla
