// SPDX-License-Identifier: MIT
// Blocked attention within the error budget over the table of cases, in float and double.
#include "common/attention_budget.hpp"

namespace heed_test {
namespace {

TEST(AttentionBudget, HoldsInFloat) { check_all_budgets<float, float, double>(); }
TEST(AttentionBudget, HoldsInDouble) { check_all_budgets<double, double, long double>(); }

}  // namespace
}  // namespace heed_test
