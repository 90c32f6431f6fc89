// SPDX-License-Identifier: MIT
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <heed/core/scalar.hpp>
#include <heed/core/workspace.hpp>

#include "common/allocation_counter.hpp"
#include "common/little_memory.hpp"
#include "common/random_inputs.hpp"

namespace {

using heed::Index;
using heed::Workspace;
using heed_test::Random;

/// Pieces of memory taken in nested frames. Each is filled with its own byte; that all still hold it when they are
/// given back shows that none overlapped.
class Nest {
 public:
  explicit Nest(Workspace& workspace) : workspace_(workspace) {}

  void run(Random& random, int depth) {
    const Workspace::Frame frame(workspace_);
    struct Task {
      unsigned char* memory;
      std::size_t size;
      int mark;
    };
    std::vector<Task> pieces;
    const int count = random.integer(0, 4);
    for (int i = 0; i < count; ++i) {
      const auto size =
          static_cast<std::size_t>(random.chance(1.0 / 3) ? random.integer(0, 39999) : random.integer(0, 299));
      auto* memory = workspace_.take<unsigned char>(static_cast<Index>(size));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % Workspace::kAlignment, 0u);
      const int mark = random.integer(0, 255);
      std::memset(memory, mark, size);
      pieces.push_back({memory, size, mark});
      if (depth > 0 && random.chance(0.5)) run(random, depth - 1);
    }
    for (const Task& p : pieces) {
      for (std::size_t i = 0; i < p.size; ++i) ASSERT_EQ(p.memory[i], p.mark) << "byte " << i << " of " << p.size;
    }
  }

 private:
  Workspace& workspace_;
};

TEST(Workspace, PiecesNeverOverlapAndAreAligned) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Workspace workspace;
    for (int call = 0; call < 3; ++call) {
      Random random(seed);
      Nest(workspace).run(random, 4);
      if (HasFatalFailure()) return;
    }
  }
}

/// A call as layers make it: frames within frames, many pieces.
void call(Workspace& workspace, Index n) {
  const Workspace::Frame outer(workspace);
  workspace.take<float>(n);
  for (int layer = 0; layer < 3; ++layer) {
    const Workspace::Frame inner(workspace);
    workspace.take<double>(2 * n);
    workspace.tensor<float, 3>({2, n, 3});
    workspace.take<heed::half>(0);
  }
  workspace.take<char>(1);
}

TEST(Workspace, AllocatesNothingOnceItHasSeenACall) {
  ASSERT_TRUE(heed_test::counts_allocations());
  Workspace workspace;
  EXPECT_GT(heed_test::allocations_of([&] { call(workspace, 5000); }), 0);
  EXPECT_EQ(heed_test::allocations_of([&] {
              for (int i = 0; i < 100; ++i) call(workspace, 5000);
              call(workspace, 10);
            }),
            0);
}

TEST(Workspace, AllocatesNothingAfterReservingThePeakOfAnother) {
  Workspace first;
  call(first, 3000);
  Workspace second;
  second.reserve(first.peak());
  EXPECT_GE(second.capacity(), first.peak());
  EXPECT_EQ(heed_test::allocations_of([&] { call(second, 3000); }), 0);
  EXPECT_EQ(second.peak(), first.peak());
}

TEST(Workspace, BytesOfAddUpToThePeak) {
  Workspace workspace;
  {
    const Workspace::Frame frame(workspace);
    workspace.take<float>(100);
    workspace.take<double>(7);
    const Workspace::Frame inner(workspace);
    workspace.take<char>(1);
  }
  EXPECT_EQ(workspace.peak(),
            Workspace::bytes_of<float>(100) + Workspace::bytes_of<double>(7) + Workspace::bytes_of<char>(1));
  EXPECT_EQ(Workspace::bytes_of<float>(16), 64u);
  EXPECT_EQ(Workspace::bytes_of<float>(17), 128u);
  EXPECT_EQ(Workspace::bytes_of<float>(0), 0u);
}

TEST(Workspace, EndedFramesGiveTheirMemoryBack) {
  Workspace workspace;
  workspace.reserve(1 << 16);
  const Workspace::Frame outer(workspace);
  const void* first = nullptr;
  for (int i = 0; i < 3; ++i) {
    const Workspace::Frame frame(workspace);
    const void* memory = workspace.take<float>(1000);
    if (i == 0) first = memory;
    EXPECT_EQ(memory, first);
  }
}

TEST(Workspace, ManyFramesDoNotGrowIt) {
  Workspace workspace;
  for (int i = 0; i < 1000; ++i) call(workspace, 1 + i % 100);
  EXPECT_LE(workspace.capacity(), workspace.peak() + 4096);
}

#if defined(HEED_TEST_LITTLE_MEMORY)
TEST(Workspace, OutOfMemoryReachesTheCaller) {
  Workspace workspace;
  constexpr Index size = Index{64} << 20;
  const auto run = [&](Index n) {
    const Workspace::Frame frame(workspace);
    workspace.take<char>(n);
    workspace.take<char>(n);
  };
  {
    const heed_test::LittleMemory little(3 * size);
    run(size);
    EXPECT_THROW(run(3 * size), std::bad_alloc);
    run(size / 2);
  }
  run(size);
  EXPECT_EQ(heed_test::allocations_of([&] { run(size); }), 0);
}

TEST(Workspace, AFrameThatEndsWithoutMemoryDoesNotThrow) {
  Workspace workspace;
  constexpr Index size = Index{64} << 20;
  {
    auto frame = std::make_unique<Workspace::Frame>(workspace);
    workspace.take<char>(size);
    workspace.take<char>(size);
    const heed_test::LittleMemory little(-2 * size);
    frame.reset();  // would merge the two blocks
    EXPECT_THROW(
        {
          const Workspace::Frame next(workspace);
          workspace.take<char>(size);
        },
        std::bad_alloc);
  }
  const Workspace::Frame frame(workspace);
  EXPECT_NO_THROW(workspace.take<char>(size));
}
#endif

TEST(Workspace, ReleaseAndReserveDoNothingInsideAFrame) {
  Workspace workspace;
  const Workspace::Frame frame(workspace);
  auto* memory = workspace.take<int>(10);
  std::memset(memory, 0x5a, 10 * sizeof(int));
  const std::size_t capacity = workspace.capacity();
  workspace.release();
  workspace.reserve(100 * capacity);
  EXPECT_EQ(workspace.capacity(), capacity);
  EXPECT_EQ(memory[9], 0x5a5a5a5a);
}

TEST(Workspace, ReleaseGivesAllMemoryBack) {
  Workspace workspace;
  call(workspace, 100);
  EXPECT_GT(workspace.capacity(), 0u);
  workspace.release();
  EXPECT_EQ(workspace.capacity(), 0u);
  call(workspace, 100);
}

TEST(Workspace, FramesEndWithExceptions) {
  Workspace workspace;
  workspace.reserve(1 << 12);
  for (int i = 0; i < 100; ++i) {
    try {
      const Workspace::Frame frame(workspace);
      workspace.take<char>(1 << 11);
      throw heed::ValueError("stop");
    } catch (const heed::ValueError&) {}
  }
  EXPECT_EQ(workspace.capacity(), std::size_t{1} << 12);
}

TEST(Workspace, TensorIsRowMajorAndChecked) {
  Workspace workspace;
  const Workspace::Frame frame(workspace);
  const heed::TensorView<float, 3> t = workspace.tensor<float, 3>({2, 3, 4});
  EXPECT_TRUE(t.is_contiguous());
  EXPECT_EQ(t.size(), 24);
  EXPECT_THROW((workspace.tensor<float, 2>({-1, 2})), heed::ShapeError);
  EXPECT_THROW((workspace.tensor<float, 2>({Index{1} << 31, 1})), heed::ShapeError);
}

TEST(Workspace, MovesWithItsMemory) {
  Workspace a;
  call(a, 1000);
  Workspace b(std::move(a));
  EXPECT_EQ(heed_test::allocations_of([&] { call(b, 1000); }), 0);
}

}  // namespace
