// Runs a fuzzer where there is no libFuzzer: on a machine with a GPU and no compiler. Inputs are given ones,
// changed by a seeded generator, without a look at coverage.
//
// usage: fuzz_c_api [--engine cpu|copies|cuda] [--seconds N] [--seed N] FILE|FOLDER...
// Without --seconds each given input is run as it is. An input that fails is kept in $OUT (default: here).
#include "fuzz.h"

#include "kit/random.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace smla::fuzz {
namespace {

using Input = std::vector<uint8_t>;
constexpr size_t kMostBytes = 4096;
constexpr unsigned kMostSeconds = 60;  // for one input

// What runs now, for the signal handler.
const Input* running = nullptr;
char kept_at[512];

// Only calls that a signal handler may make.
void keep_input(int signal) {
    const int file = open(kept_at, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    bool kept = file >= 0 && running;
    if (kept) kept = write(file, running->data(), running->size()) == ssize_t(running->size());
    constexpr char kKept[] = "\nfuzz: failed; the input is kept in ",
                   kLost[] = "\nfuzz: failed; no room for ";
    if (write(2, kept ? kKept : kLost, (kept ? sizeof kKept : sizeof kLost) - 1) < 0 ||
        write(2, kept_at, std::strlen(kept_at)) < 0 || write(2, "\n", 1) < 0)
        _exit(3);
    std::signal(signal, SIG_DFL);
    raise(signal);
}

void run(const Input& input) {
    running = &input;
    alarm(kMostSeconds);
    LLVMFuzzerTestOneInput(input.data(), input.size());
    alarm(0);
    running = nullptr;
}

uint8_t any_byte(kit::Random& random) {
    return random.chance(0.3) ? random.pick<uint8_t>({0, 1, 0x7F, 0x80, 0xFF}) : uint8_t(random.next());
}

void change(Input& input, const std::vector<Input>& others, kit::Random& random) {
    const auto place = [&](size_t size) {
        return random.between(0, std::max(int64_t(size) - 1, int64_t(0)));
    };
    switch (random.between(0, 4)) {
        case 0:
            if (!input.empty()) input[size_t(place(input.size()))] = any_byte(random);
            break;
        case 1:
            if (!input.empty()) input[size_t(place(input.size()))] ^= uint8_t(1 << random.between(0, 7));
            break;
        case 2: input.insert(input.begin() + place(input.size()), any_byte(random)); break;
        case 3: input.resize(size_t(place(input.size() + 1))); break;  // the rest is then drawn
        default: {
            const Input& other = others[size_t(place(others.size()))];
            if (other.empty()) break;
            const int64_t from = place(other.size());
            input.resize(size_t(place(input.size() + 1)));
            input.insert(input.end(), other.begin() + from, other.end());
        }
    }
    if (input.size() > kMostBytes) input.resize(kMostBytes);
}

std::vector<Input> read(const std::vector<std::filesystem::path>& given) {
    std::vector<std::filesystem::path> files;
    for (const auto& path : given)
        if (std::filesystem::is_directory(path))
            for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry.path());
        else files.push_back(path);
    std::sort(files.begin(), files.end());
    std::vector<Input> out;
    for (const auto& path : files) {
        std::ifstream file(path, std::ios::binary);
        if (!file) {
            std::fprintf(stderr, "fuzz: cannot read %s\n", path.c_str());
            std::exit(2);
        }
        out.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    return out;
}

[[noreturn]] void usage() {
    std::fprintf(stderr,
                 "usage: fuzz_c_api [--engine cpu|copies|cuda] [--seconds N] [--seed N] FILE|FOLDER...\n");
    std::exit(2);
}

struct Options {
    int64_t seconds = 0, seed = 1;
    std::vector<std::filesystem::path> given;

    Options(int argc, char** argv) {
        for (int i = 1; i < argc; ++i) {
            const std::string_view word = argv[i];
            if (!word.starts_with("--")) {
                given.emplace_back(word);
                continue;
            }
            if (++i == argc) usage();
            if (word == "--engine") setenv("SMLA_FUZZ_ENGINE", argv[i], 1);
            else if (word == "--seconds") seconds = number(argv[i]);
            else if (word == "--seed") seed = number(argv[i]);
            else usage();
        }
        if (given.empty()) usage();
    }
    static int64_t number(std::string_view word) {
        int64_t out = 0;
        const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), out);
        if (error != std::errc() || end != word.data() + word.size() || out < 0) usage();
        return out;
    }
};

int main(int argc, char** argv) {
    const Options options(argc, argv);
    const char* const out = std::getenv("OUT");
    std::snprintf(kept_at, sizeof kept_at, "%s/fuzz_failed_input", out ? out : ".");
    for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM})
        std::signal(signal, keep_input);
    const std::vector<Input> inputs = read(options.given);
    if (inputs.empty()) usage();
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
    int64_t executions = 0;
    for (; size_t(executions) < inputs.size(); ++executions) run(inputs[size_t(executions)]);
    kit::Random random(uint64_t(options.seed));
    for (; seconds() < double(options.seconds); ++executions) {
        Input input = inputs[size_t(random.between(0, std::ssize(inputs) - 1))];
        for (int64_t i = random.between(1, 6); i > 0; --i) change(input, inputs, random);
        run(input);
    }
    std::printf("fuzz: %lld inputs, %.0f a second, seed %lld\n", (long long)executions,
                double(executions) / std::max(seconds(), 1e-9), (long long)options.seed);
    return report() || options.seconds == 0 ? 0 : 1;
}

}  // namespace
}  // namespace smla::fuzz

int main(int argc, char** argv) { return smla::fuzz::main(argc, argv); }
