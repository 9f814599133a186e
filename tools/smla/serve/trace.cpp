#include "trace.h"

#include "core/status.h"
#include "model/mapped_file.h"

#include <charconv>
#include <sstream>

namespace smla::cli {

namespace {

int32_t number(const std::string& place, const std::string& word, int32_t least, int32_t most) {
    int32_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size() || value < least || value > most)
        fail(SMLA_DATA_ERROR, place, word, text(least, " to ", most));
    return value;
}

}  // namespace

std::vector<TraceRequest> read_trace(const std::string& path) {
    std::istringstream file(read_text_file(path, kMostTraceBytes));
    return parse_trace(file, path);
}

std::vector<TraceRequest> parse_trace(std::istream& file, const std::string& path) {
    constexpr const char* kHead = "arrival,prompt,output,shared";
    constexpr std::string_view kByteOrderMark =
        "\xEF\xBB\xBF";  // byte order mark of UTF-8, which spreadsheets write
    constexpr int32_t kMostTokens = 1 << 20;
    std::vector<TraceRequest> out;
    int64_t tokens = 0;
    bool head = false;
    int64_t line_number = 0;
    for (std::string line; std::getline(file, line);) {
        ++line_number;
        if (line_number == 1 && line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
        if (!line.empty() && line.back() == '\r') line.pop_back();
        if (line.empty() || line[0] == '#') continue;
        const std::string place = text(path, ":", line_number);
        if (!head) {
            if (line != kHead) fail(SMLA_DATA_ERROR, place, line, kHead);
            head = true;
            continue;
        }
        std::vector<std::string> words;
        std::istringstream cells(line + ",");
        for (std::string word; words.size() <= 4 && std::getline(cells, word, ',');) words.push_back(word);
        if (words.size() != 4) fail(SMLA_DATA_ERROR, place, line, "four numbers");
        TraceRequest request;
        request.arrival = number(place + " arrival", words[0], 0, kMostTokens);
        request.prompt = number(place + " prompt", words[1], 1, kMostTokens);
        request.output = number(place + " output", words[2], 1, kMostTokens);
        request.shared = number(place + " shared", words[3], 0, request.prompt);
        tokens += request.total();
        if (tokens > kMostTraceTokens)
            fail(SMLA_DATA_ERROR, place, text(tokens, " tokens in the requests up to this line"),
                 text("at most ", kMostTraceTokens));
        out.push_back(request);
    }
    if (out.empty())
        fail(SMLA_DATA_ERROR, path, "a file without requests", text("at least one line after ", kHead));
    return out;
}

}  // namespace smla::cli
