// Reads all elements of a model in layout order on a thread of its own, a few blocks ahead of
// whoever uses them, so that reading and writing overlap.
#pragma once

#include <algorithm>
#include <array>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/device/error.h"
#include "kernels/device/stream.h"

namespace tessera {

class ReadAhead {
 public:
  struct Tensor {
    std::string name;
    Index count;
  };
  /// Fills values with elements begin, begin + 1, ... of a tensor.
  using Source = std::function<void(std::string_view tensor, Index begin, std::span<float> values)>;

  /// `source` is called on another thread only, tensor by tensor in this order, until all is read
  /// or this object goes.
  ReadAhead(std::vector<Tensor> tensors, Source source)
      : tensors_(std::move(tensors)), source_(std::move(source)) {
    for (std::vector<float>& block : blocks_) {
      block.resize(static_cast<std::size_t>(kBlockElements));
    }
    reader_ = std::thread([this] { run(); });
  }
  ~ReadAhead() {
    {
      const std::lock_guard lock(mutex_);
      is_stopped_ = true;
    }
    changed_.notify_all();
    reader_.join();
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// The next values.size() elements. Throws what the source threw.
  /// Requires: `tensor` and `begin` are where the last call ended.
  void read(std::string_view tensor, Index begin, std::span<float> values) {
    while (!values.empty()) {
      if (taken_ == available_) {
        next_block();
      }
      TESSERA_REQUIRE(tensor == current_ && begin == current_begin_ + taken_,
                      "elements are read in layout order");
      const Index count = std::min(available_ - taken_, static_cast<Index>(values.size()));
      const float* const from = blocks_[used_ % kBlocks].data() + taken_;
      std::copy(from, from + count, values.begin());
      taken_ += count;
      begin += count;
      values = values.subspan(static_cast<std::size_t>(count));
    }
  }

 private:
  static constexpr Index kBlockElements = Index{1} << 20;
  static constexpr std::size_t kBlocks = 4;
  // A block holds elements of one tensor.
  struct Content {
    std::string_view tensor;
    Index begin = 0;
    Index count = 0;
  };

  void run() {
    try {
      for (const Tensor& tensor : tensors_) {
        for (Index begin = 0; begin < tensor.count; begin += kBlockElements) {
          if (!wait_for([this] { return filled_ - freed_ < kBlocks; })) {
            return;
          }
          const std::size_t place = filled_ % kBlocks;
          contents_[place] = {tensor.name, begin, std::min(kBlockElements, tensor.count - begin)};
          source_(
              tensor.name, begin,
              std::span(blocks_[place]).first(static_cast<std::size_t>(contents_[place].count)));
          announce([this] { ++filled_; });
        }
      }
      announce([this] { is_stopped_ = true; });
    } catch (...) {
      announce([this] {
        failure_ = std::current_exception();
        is_stopped_ = true;
      });
    }
  }

  void next_block() {
    if (available_ > 0) {
      ++used_;
      announce([this] { ++freed_; });
    }
    if (!wait_for([this] { return filled_ > used_; })) {
      if (failure_) {
        std::rethrow_exception(failure_);
      }
      throw ContractError("more elements are read than there are", TESSERA_HERE);
    }
    const Content& content = contents_[used_ % kBlocks];
    current_ = content.tensor;
    current_begin_ = content.begin;
    available_ = content.count;
    taken_ = 0;
  }

  /// False if the other side stopped before the condition held.
  template <typename Condition>
  bool wait_for(Condition condition) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return condition() || is_stopped_; });
    return condition();
  }
  template <typename Change>
  void announce(Change change) {
    {
      const std::lock_guard lock(mutex_);
      change();
    }
    changed_.notify_all();
  }

  std::vector<Tensor> tensors_;
  Source source_;
  std::array<std::vector<float>, kBlocks> blocks_;
  std::array<Content, kBlocks> contents_;

  // Shared, under the mutex.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t filled_ = 0;  // blocks, since the start
  std::size_t freed_ = 0;
  bool is_stopped_ = false;
  std::exception_ptr failure_;

  // The user's side.
  std::size_t used_ = 0;  // blocks used up
  std::string_view current_;
  Index current_begin_ = 0;
  Index available_ = 0;
  Index taken_ = 0;

  std::thread reader_;  // last, so that it starts when all else is there
};

}  // namespace tessera
