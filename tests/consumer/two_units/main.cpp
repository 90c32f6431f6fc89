// SPDX-License-Identifier: MIT

#include <cmath>
#include <cstdio>

float first(int keys);
float second(int keys);

int main() {
  const float a = first(37), b = second(37);
  std::printf("%.9g %.9g\n", static_cast<double>(a), static_cast<double>(b));
  return std::abs(a - b) <= 1e-4f && a > 1.0f ? 0 : 1;
}
