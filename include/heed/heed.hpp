// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Everything of heed that needs Eigen and the standard library alone.

#include <heed/attention/attention.hpp>
#include <heed/attention/backward.hpp>
#include <heed/attention/linear.hpp>
#include <heed/attention/segmented.hpp>
#include <heed/core/context.hpp>
#include <heed/core/parallel.hpp>
#include <heed/core/random.hpp>
#include <heed/core/tensor.hpp>
#include <heed/inspect/diagnostics.hpp>
#include <heed/inspect/heatmap.hpp>
#include <heed/inspect/html.hpp>
#include <heed/inspect/lint.hpp>
#include <heed/io/name_map.hpp>
#include <heed/mask/basic.hpp>
#include <heed/mask/dense.hpp>
#include <heed/mask/modifier.hpp>
#include <heed/mask/print.hpp>
#include <heed/mask/sparse.hpp>
#include <heed/nn/activation.hpp>
#include <heed/nn/checkpoint.hpp>
#include <heed/nn/dropout.hpp>
#include <heed/nn/embedding.hpp>
#include <heed/nn/feed_forward.hpp>
#include <heed/nn/init.hpp>
#include <heed/nn/linear.hpp>
#include <heed/nn/multi_head_attention.hpp>
#include <heed/nn/norm.hpp>
#include <heed/nn/parameter.hpp>
#include <heed/nn/positional.hpp>
#include <heed/nn/recurrent.hpp>
#include <heed/nn/self_attention.hpp>
#include <heed/nn/transformer.hpp>
#include <heed/train/clip.hpp>
#include <heed/train/gradcheck.hpp>
#include <heed/train/loss.hpp>
#include <heed/train/monitor.hpp>
#include <heed/train/optimizer.hpp>
#include <heed/train/parameter_list.hpp>
#include <heed/train/schedule.hpp>
#include <heed/train/training_state.hpp>
#include <heed/version.hpp>
