#include "progress.h"

#include "terminal.h"
#include "units.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace smla::cli {

namespace {

bool is_terminal() {
    const char* terminal = std::getenv("TERM");
    return isatty(STDERR_FILENO) && terminal && std::string(terminal) != "dumb";
}

Progress* newest = nullptr;  // the tool draws one at a time

}  // namespace

Progress::Progress(int64_t total, const std::string& first)
    : total_(std::max<int64_t>(total, 1)), shown_(is_terminal()) {
    newest = this;
    advance(0, first);
}

Progress::~Progress() {
    erase();
    newest = nullptr;
}

void Progress::erase() {
    if (!newest || !newest->seen_) return;
    std::fputs("\r\033[K", stderr);
    newest->seen_ = false;
    newest->drawn_ = {};
}

void Progress::advance(int64_t steps, const std::string& doing) {
    done_ = std::min(total_, done_ + steps);
    if (!shown_) return;
    const auto now = Clock::now();
    if (now - drawn_ < std::chrono::milliseconds(100) && done_ < total_) return;
    drawn_ = now;
    draw(doing);
}

void Progress::draw(const std::string& doing) {
    const double share = double(done_) / double(total_);
    const double gone = std::chrono::duration<double>(Clock::now() - start_).count();
    const std::string left = done_ ? seconds_text(gone / share - gone) + " left" : "";
    constexpr size_t bar = 24;
    const size_t filled = size_t(share * bar);
    std::string line = fmt::format("[{}{}] {:3.0f} %  {}  {}", std::string(filled, '#'),
                                   std::string(bar - filled, '.'), share * 100, left, doing);
    line.resize(std::min(line.size(), terminal_columns(STDERR_FILENO) - 1));
    std::fprintf(stderr, "\r%s\033[K", line.c_str());
    std::fflush(stderr);
    seen_ = true;
}

}  // namespace smla::cli
