// Golden files on every engine and cache format. All of them run through the tool, in a release build; these
// few also under the sanitizers, whose build would take a quarter longer with the tool.
#include "fixture.h"
#include "golden/verify.h"

namespace smla::layers_test {
namespace {

TEST(Goldens, EveryCombinationPasses) {
    for (const char* name :
         {"D1", "D2_eps", "D3", "D5_batch", "G2", "V1_S9", "V2_S40", "V3_S9", "V5_csa", "V5_hca",
          "V5_sliding", "V7_mixed", "V8", "V41_r1", "V41_chain", "N1", "N1_pool1", "N2"}) {
        int ran = 0;
        golden::verify_golden(load(name), {.threads = 2}, [&](const golden::Combination& each) {
            if (!each.ran()) return;
            ++ran;
            const golden::Checked& worst = *each.worst();
            EXPECT_TRUE(each.pass()) << name << " " << each.engine << " " << each.kv_format << " "
                                     << each.index_format << " " << each.how << ": " << worst.tensor << " "
                                     << worst.error << " of " << worst.tolerance << " " << worst.measure;
        });
        EXPECT_GE(ran, 5) << name;
    }
}

}  // namespace
}  // namespace smla::layers_test
