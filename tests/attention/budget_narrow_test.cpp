// SPDX-License-Identifier: MIT
// Blocked attention within the error budget over the table of cases, with 16-bit elements.
#include "common/attention_budget.hpp"

namespace heed_test {
namespace {

TEST(AttentionBudget, HoldsInHalf) { check_all_budgets<heed::half, heed::half, double>(); }
TEST(AttentionBudget, HoldsInBfloat16) { check_all_budgets<heed::bfloat16, heed::bfloat16, double>(); }
TEST(AttentionBudget, HoldsForHalfBesideFloat) { check_all_budgets<float, heed::half, double>(); }
TEST(AttentionBudget, HoldsForBfloat16BesideFloat) { check_all_budgets<float, heed::bfloat16, double>(); }

}  // namespace
}  // namespace heed_test
