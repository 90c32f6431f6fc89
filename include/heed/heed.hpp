// SPDX-License-Identifier: MIT
#pragma once

/// @file
/// Includes all of heed except heed/inspect.hpp and heed/eigen_tensor.hpp.

#include <heed/attention/attention.hpp>
#include <heed/attention/linear/linear.hpp>
#include <heed/attention/segmented/segmented.hpp>
#include <heed/compiled.hpp>
#include <heed/core/context.hpp>
#include <heed/core/parallel.hpp>
#include <heed/core/random.hpp>
#include <heed/core/tensor.hpp>
#include <heed/io/name_map.hpp>
#include <heed/io/name_maps.hpp>
#include <heed/mask/any_mask.hpp>
#include <heed/mask/basic.hpp>
#include <heed/mask/bool_mask.hpp>
#include <heed/mask/concept.hpp>
#include <heed/mask/modifier.hpp>
#include <heed/mask/sparse.hpp>
#include <heed/nn/activation.hpp>
#include <heed/nn/attention_layer.hpp>
#include <heed/nn/dropout.hpp>
#include <heed/nn/embedding.hpp>
#include <heed/nn/feed_forward.hpp>
#include <heed/nn/group_norm.hpp>
#include <heed/nn/init.hpp>
#include <heed/nn/kv_cache.hpp>
#include <heed/nn/layer.hpp>
#include <heed/nn/linear.hpp>
#include <heed/nn/module.hpp>
#include <heed/nn/multi_head_attention.hpp>
#include <heed/nn/norm.hpp>
#include <heed/nn/parameter.hpp>
#include <heed/nn/positional.hpp>
#include <heed/nn/recurrent.hpp>
#include <heed/nn/rotary.hpp>
#include <heed/nn/self_attention.hpp>
#include <heed/nn/transformer.hpp>
#include <heed/train/checkpoint.hpp>
#include <heed/train/gradcheck.hpp>
#include <heed/train/loss.hpp>
#include <heed/train/monitor.hpp>
#include <heed/train/optimizer.hpp>
#include <heed/train/parameter_list.hpp>
#include <heed/version.hpp>
