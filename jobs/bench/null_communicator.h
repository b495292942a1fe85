// A communicator whose data operations can be left out, so that what they cost a step is the
// difference.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collectives/communicator.h"

namespace tessera::bench {

/// Passes every call on to `comm`; while it is null, data operations do nothing: what they would
/// have written keeps its former contents, so a step computes on stale numbers. Control operations
/// always take place.
class NullCommunicator final : public Communicator {
 public:
  explicit NullCommunicator(std::unique_ptr<Communicator> comm)
      : Communicator(comm->rank(), comm->world_size()), comm_(std::move(comm)) {}

  void set_null(bool is_null) noexcept { is_null_ = is_null; }

  [[nodiscard]] std::string_view data_path() const noexcept override { return comm_->data_path(); }
  void barrier() override { comm_->barrier(); }
  [[nodiscard]] bool all_agree(bool ok) override { return comm_->all_agree(ok); }
  void sum(std::span<std::int64_t> values) override { comm_->sum(values); }
  [[nodiscard]] std::vector<std::string> gather_text(std::string_view text) override {
    return comm_->gather_text(text);
  }
  void check_health() override { comm_->check_health(); }
  void abort() noexcept override { comm_->abort(); }

 private:
  void do_all_to_all(const RankGroup& group, ConstTensorView send, TensorView recv,
                     Stream& stream) override {
    if (!is_null_) {
      comm_->all_to_all(group, send, recv, stream);
    }
  }
  void do_reduce_scatter(ConstTensorView send, TensorView recv, Stream& stream) override {
    if (!is_null_) {
      comm_->reduce_scatter(send, recv, stream);
    }
  }
  void do_all_gather(ConstTensorView send, TensorView recv, Stream& stream) override {
    if (!is_null_) {
      comm_->all_gather(send, recv, stream);
    }
  }

  std::unique_ptr<Communicator> comm_;
  bool is_null_ = false;
};

}  // namespace tessera::bench
