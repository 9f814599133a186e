// The emulator of AMX against plain loops: random tiles of every shape, special values, each way to name
// memory, tiles of threads.
#include "kit/amx_emulator.h"

#include <gtest/gtest.h>

#if defined(__x86_64__) && defined(__linux__)

#include <array>
#include <bit>
#include <cmath>
#include <csignal>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

namespace smla::kit {
namespace {

struct Config {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
    void shape(int tile, int tile_rows, int bytes) {
        rows[tile] = uint8_t(tile_rows);
        row_bytes[tile] = uint16_t(bytes);
    }
};

void configure(const Config& config) { asm volatile("ldtilecfg %0" ::"m"(config) : "memory"); }
void release() { asm volatile("tilerelease" ::: "memory"); }
template <int T>
void load(const void* at, int64_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(at), "r"(stride) : "memory");
}
template <int T>
void store(void* at, int64_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(at), "r"(stride) : "memory");
}

class AmxEmulator : public testing::Test {
protected:
    void SetUp() override {
        if (!install_amx_emulator()) GTEST_SKIP() << "needs AVX-512 and a processor without tiles";
        release();
    }
    void TearDown() override {
        if (!IsSkipped()) release();
    }
    std::mt19937 random{7};
};

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float flushed(float v) { return std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(0.f, v) : v; }
float bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }

struct Product {
    int rows, columns, pairs;
    std::vector<uint16_t> a, b;  // [rows][2 * pairs], [pairs][2 * columns]
    std::vector<float> sum;

    Product(int rows, int columns, int pairs) : rows(rows), columns(columns), pairs(pairs) {
        a.resize(size_t(rows * pairs * 2));
        b.resize(size_t(pairs * columns * 2));
        sum.resize(size_t(rows * columns));
    }
    std::vector<float> expected() const {
        std::vector<float> out = sum;
        for (int m = 0; m < rows; ++m)
            for (int n = 0; n < columns; ++n) {
                float half[2] = {0, 0};
                for (int k = 0; k < pairs; ++k)
                    for (int i = 0; i < 2; ++i) {
                        const float x = flushed(bf16(a[size_t((m * pairs + k) * 2 + i)]));
                        const float y = flushed(bf16(b[size_t((k * columns + n) * 2 + i)]));
                        half[i] = flushed(std::fma(x, y, half[i]));
                    }
                float& at = out[size_t(m * columns + n)];
                at = flushed(flushed(at) + flushed(half[0] + half[1]));
            }
        return out;
    }
    std::vector<float> emulated() const {
        Config config;
        config.shape(0, rows, columns * 4);
        config.shape(5, rows, pairs * 4);
        config.shape(7, pairs, columns * 4);
        configure(config);
        load<0>(sum.data(), columns * 4);
        load<5>(a.data(), pairs * 4);
        load<7>(b.data(), columns * 4);
        asm volatile("tdpbf16ps %%tmm7, %%tmm5, %%tmm0" ::: "memory");
        std::vector<float> out(sum.size());
        store<0>(out.data(), columns * 4);
        return out;
    }
};

void expect_same(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
    for (size_t i = 0; i < want.size(); ++i) {
        if (std::isnan(want[i]) && std::isnan(got[i])) continue;
        ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
            << what << " at " << i << ": " << got[i] << " want " << want[i];
    }
}

TEST_F(AmxEmulator, ProductsOfEveryShape) {
    std::normal_distribution<float> normal;
    for (const int rows : {1, 3, 8, 15, 16})
        for (const int columns : {1, 2, 7, 16})
            for (const int pairs : {1, 5, 16}) {
                Product it(rows, columns, pairs);
                for (auto* operand : {&it.a, &it.b})
                    for (uint16_t& each : *operand)
                        each = uint16_t(std::bit_cast<uint32_t>(normal(random)) >> 16);
                for (float& each : it.sum) each = normal(random);
                expect_same(
                    it.emulated(), it.expected(),
                    std::to_string(rows) + "x" + std::to_string(columns) + "x" + std::to_string(pairs));
            }
}

TEST_F(AmxEmulator, DenormalAndSpecialNumbers) {  // bits of any kind: denormals, infinities, NaN
    const float special[] = {0.f,  -0.f,     0x1p-149f, -0x1p-127f, 0x1p-126f,
                             kNan, INFINITY, -INFINITY, 0x1p127f};
    for (int round = 0; round < 50; ++round) {
        Product it(16, 16, 16);
        for (auto* operand : {&it.a, &it.b})
            for (uint16_t& each : *operand) {
                const uint16_t exponent = uint16_t(round % 2 ? 0x1f80 + random() % 0x100 : random() % 0x80);
                each = random() % 8 ? uint16_t((random() & 0x807f) | (exponent & 0x7f80))
                                    : uint16_t(std::bit_cast<uint32_t>(special[random() % 5]) >> 16);
                if (round > 40 && random() % 64 == 0)
                    each = uint16_t(std::bit_cast<uint32_t>(special[random() % 9]) >> 16);
            }
        for (float& each : it.sum) each = special[random() % (round > 40 ? 9 : 5)];
        expect_same(it.emulated(), it.expected(), "round " + std::to_string(round));
    }
}

TEST_F(AmxEmulator, SumsRoundOnceAndToEven) {  // 1 + 2^-24 + 2^-24: in order 1, even and odd apart 1 + 2^-23
    Product it(1, 1, 2);
    const auto set = [](uint16_t& to, float v) { to = uint16_t(std::bit_cast<uint32_t>(v) >> 16); };
    for (uint16_t& each : it.b) set(each, 1.f);
    set(it.a[0], 1.f);
    set(it.a[1], 0x1p-24f);
    set(it.a[2], 0.f);
    set(it.a[3], 0x1p-24f);
    EXPECT_EQ(it.emulated()[0], 1 + 0x1p-23f);
    set(it.a[2], 0x1p-24f);  // a tie, to even: lost
    set(it.a[1], 0.f);
    set(it.a[3], 0.f);
    EXPECT_EQ(it.emulated()[0], 1.f);
}

TEST_F(AmxEmulator, RowsAndBytesBeyondTheShapeBecomeZero) {
    std::array<uint32_t, 256> ones, out;
    ones.fill(0x3f803f80u);
    Config full;
    full.shape(2, 16, 64);
    configure(full);
    load<2>(ones.data(), 64);
    store<2>(out.data(), 64);
    EXPECT_EQ(out, ones);
    Config part;
    part.shape(2, 3, 20);
    configure(part);  // a configuration clears every tile
    out.fill(9);
    store<2>(out.data(), 64);
    for (int row = 0; row < 16; ++row)
        for (int column = 0; column < 16; ++column)
            ASSERT_EQ(out[size_t(row * 16 + column)], row < 3 && column < 5 ? 0u : 9u);
    load<2>(ones.data(), 64);
    asm volatile("tilezero %%tmm2" ::: "memory");
    store<2>(out.data(), 64);
    EXPECT_EQ(out[0], 0u);
    Config read;
    asm volatile("sttilecfg %0" : "=m"(read)::"memory");
    EXPECT_EQ(std::memcmp(&read, &part, sizeof part), 0);
    release();
    asm volatile("sttilecfg %0" : "=m"(read)::"memory");
    Config none;
    none.palette = 0;
    EXPECT_EQ(std::memcmp(&read, &none, sizeof none), 0);
}

// Four rows of 16 bytes, 64 bytes apart.
class Named : public AmxEmulator {
protected:
    void SetUp() override {
        AmxEmulator::SetUp();
        if (IsSkipped()) return;
        for (uint32_t& each : table) each = random();
        Config config;
        config.shape(3, 4, 16);
        configure(config);
    }
    // Tile 3 holds the rows; a stride of 0 names the first one again and again.
    void expect_loaded(const char* how, size_t stride = 16) {
        std::array<uint32_t, 16> got{};
        store<3>(got.data(), 16);
        for (size_t i = 0; i < 16; ++i)
            ASSERT_EQ(got[i], table[i / 4 * stride + i % 4]) << how << " at " << i;
        asm volatile("tilezero %%tmm3" ::: "memory");
    }
    alignas(64) std::array<uint32_t, 64> table;
    uintptr_t at() const { return uintptr_t(table.data()); }
};

TEST_F(Named, ScalesAndDisplacements) {
    const int64_t stride = 64;
    asm volatile("tileloadd (%0,%1,1), %%tmm3" ::"r"(at()), "r"(stride) : "memory");
    expect_loaded("scale 1");
    asm volatile("tileloaddt1 (%0,%1,2), %%tmm3" ::"r"(at()), "r"(stride / 2) : "memory");
    expect_loaded("scale 2");
    asm volatile("tileloadd (%0,%1,4), %%tmm3" ::"r"(at()), "r"(stride / 4) : "memory");
    expect_loaded("scale 4");
    asm volatile("tileloadd -40(%0,%1,8), %%tmm3" ::"r"(at() + 40), "r"(stride / 8) : "memory");
    expect_loaded("scale 8, a byte of displacement");
    asm volatile("tileloadd 100000(%0,%1), %%tmm3" ::"r"(at() - 100000), "r"(stride) : "memory");
    expect_loaded("four bytes of displacement");
}

TEST_F(Named, RegistersThatAreEncodedInTheirOwnWay) {
#define SMLA_WITH(base_register, index_register)                                      \
    {                                                                                 \
        register uintptr_t base asm(base_register) = at();                            \
        register int64_t index asm(index_register) = 64;                              \
        asm volatile("tileloadd (%0,%1), %%tmm3" ::"r"(base), "r"(index) : "memory"); \
        expect_loaded(base_register " " index_register);                              \
    }
    SMLA_WITH("rax", "rcx")
    SMLA_WITH("rdx", "r8")
    SMLA_WITH("r12", "r13")
    SMLA_WITH("r13", "r12")  // needs a displacement as a base; as an index it is none
    SMLA_WITH("r15", "rdi")
    SMLA_WITH("rsi", "r9")
#undef SMLA_WITH
    asm volatile(
        "mov %%rsp, %%rbx\n sub $640, %%rsp\n mov %%rsp, %%rdi\n mov $32, %%ecx\n rep movsq\n"
        "tileloadd (%%rsp,%%rax), %%tmm3\n mov %%rbx, %%rsp"
        :
        : "S"(at()), "a"(int64_t(64))
        : "rbx", "rcx", "rdi", "memory");
    expect_loaded("the stack pointer");
}

TEST_F(Named, WithoutAnIndexEveryRowIsTheFirst) {
    asm volatile("tileloadd (%0), %%tmm3" ::"r"(at()) : "memory");
    expect_loaded("no index", 0);
}

TEST_F(Named, StoresKeepTheStride) {
    asm volatile("tileloadd (%0,%1), %%tmm3" ::"r"(at()), "r"(int64_t(64)) : "memory");
    std::array<uint32_t, 64> out{};
    asm volatile("tilestored %%tmm3, 64(%0,%1,8)" ::"r"(uintptr_t(out.data()) - 64), "r"(int64_t(8))
                 : "memory");
    for (size_t i = 0; i < 64; ++i) ASSERT_EQ(out[i], i % 16 < 4 ? table[i] : 0u);
}

Config static_config;

TEST_F(Named, AConfigurationRelativeToTheInstruction) {
    static_config = {};
    static_config.shape(6, 9, 12);
    asm volatile("ldtilecfg %0" ::"m"(static_config) : "memory");
    Config read;
    asm volatile("sttilecfg 32(%0)" ::"r"(uintptr_t(&read) - 32) : "memory");
    EXPECT_EQ(std::memcmp(&read, &static_config, sizeof read), 0);
}

TEST_F(AmxEmulator, ThreadsHaveTilesOfTheirOwn) {
    const auto work = [](uint32_t number) {
        std::array<uint32_t, 256> in, out;
        in.fill(number);
        Config config;
        config.shape(1, 16, 64);
        configure(config);
        load<1>(in.data(), 64);
        for (int i = 0; i < 2000; ++i) {
            out.fill(0);
            store<1>(out.data(), 64);
            if (out != in) return false;
        }
        release();
        return true;
    };
    bool right[3] = {};
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < 3; ++i) threads.emplace_back([&, i] { right[i] = work(i + 1); });
    for (std::thread& each : threads) each.join();
    EXPECT_TRUE(right[0] && right[1] && right[2]);
}

using AmxEmulatorDeathTest = AmxEmulator;

TEST_F(AmxEmulatorDeathTest, WhatAProcessorRefusesEndsTheProgram) {
    Config config;
    config.shape(0, 16, 64);
    config.shape(1, 16, 64);
    config.shape(2, 8, 64);
    configure(config);
    EXPECT_DEATH(asm volatile("tdpbf16ps %%tmm2, %%tmm1, %%tmm0" ::: "memory"), "not the right one's rows");
    // tdpbf16ps tmm0, tmm1, tmm1, which assemblers refuse
    EXPECT_DEATH(asm volatile(".byte 0xc4, 0xe2, 0x72, 0x5c, 0xc1" ::: "memory"), "named twice");
    EXPECT_DEATH(asm volatile("tilezero %%tmm3" ::: "memory"), "without rows");
    EXPECT_DEATH((release(), load<0>(this, 0)), "without a configuration");
    config.rows[0] = 17;
    EXPECT_DEATH(configure(config), "at most 16 rows");
    EXPECT_EXIT(asm volatile("ud2"), testing::KilledBySignal(SIGILL), "");  // of others
}

}  // namespace
}  // namespace smla::kit

#endif
