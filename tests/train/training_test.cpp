// SPDX-License-Identifier: MIT
// A whole training: gradient checks that must fail, accumulation, checkpointing, resuming from a file, and error
// reports.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/train/checkpoint.hpp>
#include <heed/train/gradcheck.hpp>
#include <heed/train/monitor.hpp>
#include <heed/train/optimizer.hpp>
#include <heed/train/parameter_list.hpp>

#include "common/allocation_counter.hpp"
#include "common/temporary_directory.hpp"
#include "nn/layer_checks.hpp"
#include "train/mlp.hpp"
#include "train/pair.hpp"

namespace {

using heed::Context;
using heed::Index;
using heed::ParameterList;
using heed::Tensor;
using heed::TensorView;
using namespace layer_checks;
using heed_test::Mlp;
using heed_test::Pair;

Tensor<int, 2> some_targets(Index batch, Index length) {
  Tensor<int, 2> targets(batch, length);
  for (Index i = 0; i < targets.size(); ++i) targets.data()[i] = i % 7 == 3 ? -100 : static_cast<int>((i * i) % 5);
  return targets;
}

// ---- gradcheck

TEST(Gradcheck, FindsTheWrongElement) {
  Tensor<double, 1> x(3), gradient(3);
  for (Index i = 0; i < 3; ++i) x(i) = 0.5 + static_cast<double>(i);
  const auto loss = [&] { return x(0) * x(0) * x(1) + std::sin(x(2)); };
  const auto set = [&] {
    gradient(0) = 2 * x(0) * x(1);
    gradient(1) = x(0) * x(0);
    gradient(2) = std::cos(x(2));
  };
  set();
  const std::vector<heed::GradcheckTensor> tensors{{"x", x.view(), gradient.view()}};
  auto report = heed::gradcheck(loss, tensors);
  EXPECT_TRUE(report.passed) << report.text();
  EXPECT_EQ(report.checked, 3);
  EXPECT_EQ(report.kinks, 0);
  EXPECT_EQ(x(0), 0.5) << "values are put back";

  for (Index i = 0; i < 3; ++i) {
    for (const double wrong : {1e-5, -1e-2, std::nan("")}) {
      set();
      gradient(i) += wrong;
      report = heed::gradcheck(loss, tensors);
      EXPECT_FALSE(report.passed) << report.text();
      EXPECT_EQ(report.worst_element, i);
      EXPECT_NE(report.text().find("failed"), std::string::npos);
      EXPECT_NE(report.text().find("x[" + std::to_string(i) + "]"), std::string::npos) << report.text();
    }
  }
  const Tensor<double, 1> longer(4);
  EXPECT_THROW(heed::gradcheck(loss, {{"x", x.view(), longer.view()}}), heed::ShapeError);
}

// |x| at 0 and within h of it: any slope between -1 and 1 is one, others are wrong.
TEST(Gradcheck, CountsKinks) {
  Tensor<double, 1> x(4), gradient(4);
  const double values[] = {0, 3e-6, -1, 2}, slopes[] = {0.3, 1, -1, 1};
  std::copy_n(values, 4, x.data());
  std::copy_n(slopes, 4, gradient.data());
  const auto loss = [&] { return std::abs(x(0)) + std::abs(x(1)) + std::abs(x(2)) + std::abs(x(3)); };
  auto report = heed::gradcheck(loss, {{"x", x.view(), gradient.view()}});
  EXPECT_TRUE(report.passed) << report.text();
  EXPECT_EQ(report.kinks, 2);
  EXPECT_EQ(report.checked, 2);
  gradient(0) = 1.5;
  report = heed::gradcheck(loss, {{"x", x.view(), gradient.view()}});
  EXPECT_FALSE(report.passed);
  EXPECT_EQ(report.worst_element, 0);

  // Strong curvature is not a kink.
  x(3) = 0;
  gradient(0) = 0;
  const auto bend = [&] { return 1e3 * x(3) * x(3); };
  gradient(3) = 5e-3;
  report = heed::gradcheck(bend, {{"x", x.view().slice(0, 3, 1), gradient.view().slice(0, 3, 1)}});
  EXPECT_FALSE(report.passed) << report.text();
}

// ---- accumulation

// Gradients of the parts of a batch, each divided by the count of the whole batch, add up to those of the batch, up to
// rounding. The parts skip different numbers of positions.
TEST(Accumulation, PartsAddUpToTheWholeBatch) {
  const auto x = random_tensor<double, 3>({4, 9, 8});
  const Tensor<int, 2> targets = some_targets(4, 9);
  Context context;
  Mlp<double> whole, parts;
  heed::Random random(1), same(1);
  whole.initialize(random);
  parts.initialize(same);
  Mlp<double>::Cache cache;
  const heed::Loss loss = heed_test::learn<double>(whole, x, targets, cache, {}, context);
  const Index counted = heed::count_targets(targets);
  EXPECT_EQ(loss.counted, counted);
  double sum = 0;
  for (const auto& [first, count] : {std::pair<Index, Index>{0, 1}, {1, 2}, {3, 1}}) {
    sum += heed_test::learn<double>(parts, x.view().slice(0, first, count), targets.view().slice(0, first, count),
                                    cache, {.normalizer = counted}, context)
               .value;
  }
  EXPECT_NEAR(sum, loss.value, 1e-14);
  const ParameterList<double> a(whole), b(parts);
  for (Index i = 0; i < a.size(); ++i) {
    EXPECT_LE(max_error(a[i].parameter->grad(), b[i].parameter->grad()), 1e-15) << a[i].name;
  }
}

// ---- a step

TEST(Training, AWarmStepAllocatesNothing) {
  Mlp<float> model(0.2);
  heed::Random random(1);
  model.initialize(random);
  const auto x = random_tensor<float, 3>({4, 9, 8});
  const Tensor<int, 2> targets = some_targets(4, 9);
  heed::AdamW<float> optimizer(model, {});
  Context context;
  context.training = true;
  Mlp<float>::Cache cache;
  const auto step = [&] {
    optimizer.zero_grad();
    heed_test::learn<float>(model, x, targets, cache, {}, context);
    heed::clip_grad_norm(optimizer.parameters(), 1.0, context);
    optimizer.step(context);
  };
  step();
  step();
  EXPECT_EQ(heed_test::allocations_of(step), 0);
}

TEST(Training, LearnsItsBatchByHeart) {
  Mlp<float> model;
  heed::Random random(1);
  model.initialize(random);
  const auto x = random_tensor<float, 3>({4, 9, 8});
  const Tensor<int, 2> targets = some_targets(4, 9);
  heed::AdamW<float> optimizer(model, {.learning_rate = 0.03, .weight_decay = 0});
  Context context;
  Mlp<float>::Cache cache;
  double first = 0, last = 0;
  for (int step = 0; step < 400; ++step) {
    optimizer.zero_grad();
    last = heed_test::learn<float>(model, x, targets, cache, {}, context).value;
    if (step == 0) first = last;
    optimizer.step(context);
  }
  EXPECT_GT(first, 1);
  EXPECT_LT(last, 0.05);
}

// ---- checkpointing

TEST(ActivationCheckpoint, ReplayGivesTheBitsOfTheForward) {
  const Mlp<double> model = [] {
    Mlp<double> made(0.4);
    heed::Random random(3);
    made.initialize(random);
    return made;
  }();
  const auto x = random_tensor<double, 3>({3, 20, 8}), dy = random_tensor<double, 3>({3, 20, 5}, 2);
  const auto gradients = [&](bool checkpointed) {
    Mlp<double> copy_of = model;
    Context context;
    context.training = true;
    context.seed = 9;
    context.next_stream();
    Tensor<double, 3> y(3, 20, 5);
    Mlp<double>::Cache cache;
    const heed::ActivationCheckpoint checkpoint(context);
    copy_of.forward(x, y, cache, context);
    const Tensor<double, 3> first = y;
    // Another forward pass draws further streams and overwrites the cache.
    const auto other = random_tensor<double, 3>({3, 20, 8}, 5);
    if (checkpointed) copy_of.forward(other, y, cache, context);
    const std::uint64_t before = context.next_stream();
    if (checkpointed) {
      Recorder recorder;
      context.observer = &recorder;
      checkpoint.replay(context, [&] { copy_of.forward(x, y, cache, context); });
      EXPECT_EQ(context.observer, &recorder);
      EXPECT_TRUE(recorder.names.empty()) << "shown twice";
      EXPECT_TRUE(bits_equal(first.view(), y.view()));
      EXPECT_EQ(context.next_stream(), before + 1) << "the streams go on where they were";
    }
    copy_of.backward(dy, cache, context);
    std::vector<Tensor<double, 1>> found;
    for (const auto& entry : ParameterList<double>(copy_of)) {
      found.emplace_back(entry.parameter->size());
      copy(entry.parameter->grad(), found.back().view());
    }
    return found;
  };
  const auto plain = gradients(false), replayed = gradients(true);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(bits_equal(plain[i].view(), replayed[i].view()));
}

// ---- resuming

struct SmallTraining {
  Mlp<float> model{0.3};
  heed::AdamW<float> optimizer{model, {.learning_rate = 0.01}};
  Context context;
  Mlp<float>::Cache cache;

  SmallTraining() {
    heed::Random random(1);
    model.initialize(random);
    context.training = true;
    context.seed = 42;
  }
  double step() {
    const auto x = random_tensor<float, 3>({2, 9, 8}, static_cast<std::uint64_t>(optimizer.steps()));
    optimizer.zero_grad();
    const auto targets = some_targets(2, 9);
    const double loss = heed_test::learn<float>(model, x, targets, cache, {}, context).value;
    optimizer.step(context);
    return loss;
  }
};

TEST(TrainingState, GoesOnWithTheSameNumbers) {
  const heed_test::TemporaryDirectory directory;
  const std::string path = directory.path("training.safetensors");
  SmallTraining through;
  for (int i = 0; i < 5; ++i) through.step();
  heed::save_checkpoint(path, through.model, through.optimizer, through.context, {{"made by", "a test"}});
  std::vector<double> expected;
  for (int i = 0; i < 5; ++i) expected.push_back(through.step());

  SmallTraining resumed;
  resumed.context.seed = 0;
  resumed.step();
  EXPECT_EQ(heed::load_checkpoint(path, resumed.model, resumed.optimizer, resumed.context), 5);
  EXPECT_EQ(resumed.context.seed, 42u);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(resumed.step(), expected[static_cast<std::size_t>(i)]) << "step " << i;
  const ParameterList<float> a(through.model), b(resumed.model);
  for (Index i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(bits_equal(a[i].parameter->value(), b[i].parameter->value())) << a[i].name;
  }

  // The same file serves inference.
  Mlp<float> model;
  heed::load_parameters(model, path, {.ignored = {"optimizer.*"}});
  EXPECT_EQ(heed::SafeTensors::open(path).metadata().find("made by")->second, "a test");
}

// F25: groups and steps that skipped a parameter resume from one file.
TEST(TrainingState, OfGroupsAndUnusedParameters) {
  struct Run {
    Pair<float> model{5};
    heed::AdamW<float> optimizer{model,
                                 {.weight_decay = 0.1,
                                  .groups = {{.holds = heed::biases_and_norms, .weight_decay = 0},
                                             {.holds = heed::within("second"), .rate = 3}}}};
    Context context;
    void step() {
      optimizer.zero_grad();
      if (optimizer.steps() % 3 == 0) model.second.grad()(4) = static_cast<float>(optimizer.steps() + 1);
      if (optimizer.steps() % 2 == 0) model.first.grad()(1) = static_cast<float>(optimizer.steps() + 1);
      optimizer.step();
    }
  };
  const heed_test::TemporaryDirectory directory;
  const std::string path = directory.path("training.safetensors");
  Run through, resumed;
  for (int i = 0; i < 7; ++i) through.step();
  heed::save_checkpoint(path, through.model, through.optimizer, through.context);
  resumed.step();
  heed::load_checkpoint(path, resumed.model, resumed.optimizer, resumed.context);
  EXPECT_EQ(resumed.optimizer.skipped_steps(0), 3);
  EXPECT_EQ(resumed.optimizer.skipped_steps(1), 4);
  for (int i = 0; i < 7; ++i) {
    through.step();
    resumed.step();
  }
  EXPECT_TRUE(bits_equal(through.model.first.value(), resumed.model.first.value()));
  EXPECT_TRUE(bits_equal(through.model.second.value(), resumed.model.second.value()));

  heed::save_parameters(
      heed::detail::Training<Pair<float>, heed::AdamW<float>>{through.model, through.optimizer}, path,
      {{"training.steps", "3"}, {"training.seed", "1"}, {"training.stream", "1"}, {"training.skipped.first", "4"}});
  const std::string text = message_of<heed::FormatError>(
      [&] { heed::load_checkpoint(path, resumed.model, resumed.optimizer, resumed.context); });
  EXPECT_NE(text.find("4 is more than the 3 steps"), std::string::npos) << text;
  EXPECT_EQ(resumed.optimizer.steps(), 14);
}

TEST(TrainingState, FilesThatDoNotFitAreRefused) {
  const heed_test::TemporaryDirectory directory;
  const std::string path = directory.path("training.safetensors");
  SmallTraining run;
  run.step();
  const float weight = run.model.linear1.weight.value()(0);
  heed::SGD<float> other(run.model, {.learning_rate = 0.1, .momentum = 0.9});
  heed::save_checkpoint(path, run.model, other, run.context);
  const std::string text =
      message_of<heed::FormatError>([&] { heed::load_checkpoint(path, run.model, run.optimizer, run.context); });
  EXPECT_NE(text.find("optimizer.exp_avg.linear1.weight"), std::string::npos) << text;
  EXPECT_EQ(run.model.linear1.weight.value()(0), weight);
  EXPECT_EQ(run.optimizer.steps(), 1);

  heed::save_parameters(run.model, path);
  EXPECT_THROW(heed::load_checkpoint(path, run.model, run.optimizer, run.context), heed::FormatError);
  for (const char* steps : {"", "-1", "7x", "99999999999999999999", "9223372036854775807"}) {
    heed::save_parameters(run.model, path,
                          {{"training.steps", steps}, {"training.seed", "1"}, {"training.stream", "1"}});
    const std::string refused =
        message_of<heed::FormatError>([&] { heed::load_checkpoint(path, run.model, run.optimizer, run.context); });
    EXPECT_NE(refused.find("steps"), std::string::npos) << refused;
  }
}

// ---- error reports

TEST(Monitor, NamesTheFirstLayerThatIsNotFinite) {
  Mlp<float> model(0.1);
  heed::Random random(1);
  model.initialize(random);
  const auto x = random_tensor<float, 3>({2, 9, 8});
  const Tensor<int, 2> targets = some_targets(2, 9);
  Context context;
  context.training = true;
  Mlp<float>::Cache cache;
  Tensor<float, 3> logits(2, 9, 5);
  const auto forward = [&] { model.forward(x, logits, cache, context); };
  const auto message = [&] {
    const heed::ActivationCheckpoint before(context);
    forward();
    const heed::Loss loss = heed::cross_entropy(logits, targets, context);
    return message_of<heed::ValueError>([&] { heed::require_finite(loss.value, before, context, forward); });
  };
  heed::require_finite(1.0, heed::ActivationCheckpoint(context), context, [] { FAIL() << "ran again for nothing"; });

  model.linear2.bias.mutable_value()(3) = std::numeric_limits<float>::infinity();
  std::string text = message();
  EXPECT_NE(text.find("linear2"), std::string::npos) << text;
  EXPECT_NE(text.find("inf at (0, 0, 3) of (2, 9, 5)"), std::string::npos) << text;
  model.linear1.weight.mutable_matrix()(11, 2) = std::nanf("");
  text = message();
  EXPECT_NE(text.find("linear1 (output 1 of the pass), nan at (0, 0, 11) of (2, 9, 12)"), std::string::npos) << text;
  EXPECT_EQ(context.observer, nullptr);

  heed::Random same(1);
  model.initialize(same);
  const heed::ActivationCheckpoint before(context);
  text = message_of<heed::ValueError>([&] { heed::require_finite(std::nan(""), before, context, forward); });
  EXPECT_NE(text.find("the output of every layer is finite"), std::string::npos) << text;
}

TEST(Monitor, TimerAddsUpPhases) {
  heed::TrainingTimer timer;
  volatile double sink = 0;
  const auto work = [&](int n) {
    for (int i = 0; i < n; ++i) sink = sink + 1;
    return n;
  };
  EXPECT_EQ(timer.time(heed::Phase::Forward, [&] { return work(1000); }), 1000);
  EXPECT_EQ(timer.seconds(heed::Phase::Backward), 0);
  const double once = timer.seconds(heed::Phase::Forward);
  EXPECT_GT(once, 0);
  timer.time(heed::Phase::Forward, [&] { work(1000); });
  timer.time(heed::Phase::Step, [&] { work(1000); });
  EXPECT_GT(timer.seconds(heed::Phase::Forward), once);
  EXPECT_DOUBLE_EQ(timer.total(), timer.seconds(heed::Phase::Forward) + timer.seconds(heed::Phase::Step));
  const std::string text = timer.text();
  for (const char* part : {"data 0 s (0 %)", "forward", "backward 0 s (0 %)", "step"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  timer.reset();
  EXPECT_EQ(timer.total(), 0);
}

}  // namespace
