// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The recurrent layers that heed::compiled holds, for float and double.

#include <heed/compiled/attention.hpp>
#include <heed/nn/recurrent.hpp>

/// The instances in src/recurrent.cpp for each T, with `declaration` = template or extern template.
#define HEED_COMPILED_RECURRENT(declaration, T)    \
  declaration struct detail::SimpleCell<T, false>; \
  declaration struct detail::SimpleCell<T, true>;  \
  declaration struct detail::LstmCell<T>;          \
  declaration struct detail::GruCell<T>;           \
  declaration class Recurrent<T>

#if HEED_USES_COMPILED
namespace heed {
HEED_COMPILED_RECURRENT(extern template, float);
HEED_COMPILED_RECURRENT(extern template, double);
}  // namespace heed
#endif

#include <heed/core/restore_macros.hpp>
