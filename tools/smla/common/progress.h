// A progress bar with the time left. Drawn on stderr if that is a terminal; whatever else a Tool prints there
// erases it first.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace smla::cli {

class Progress {
public:
    // `first` says what is done before the first step.
    explicit Progress(int64_t total, const std::string& first = "");
    ~Progress();  // erases the bar
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    static void erase();  // the bar that is seen now, if there is one; the next step draws it again
    void advance(int64_t steps, const std::string& doing = "");

private:
    void draw(const std::string& doing);

    using Clock = std::chrono::steady_clock;
    int64_t total_, done_ = 0;
    bool shown_, seen_ = false;
    Clock::time_point start_ = Clock::now(), drawn_{};
};

}  // namespace smla::cli
