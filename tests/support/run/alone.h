// A Communicator of one rank, without MPI: the reference that runs on several ranks are compared
// with.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "kernels/device/cpu/deferred.h"
#include "kernels/device/device_buffer.h"

namespace tessera::test {

class Alone : public Communicator {
 public:
  Alone() : Communicator(0, 1) {}
  void barrier() override { cpu::run_all_deferred(); }
  bool all_agree(bool ok) override { return ok; }
  void sum(std::span<std::int64_t>) override { cpu::run_all_deferred(); }
  std::vector<std::string> gather_text(std::string_view text) override {
    return {std::string(text)};
  }
  void check_health() override {}
  void abort() noexcept override {}

 private:
  static void copy(const ConstTensorView& from, const TensorView& to, Stream& stream) {
    if (from.data != to.data) {
      copy_async(from, to, stream);
    }
  }
  void do_all_to_all(const RankGroup&, ConstTensorView send, TensorView recv,
                     Stream& stream) override {
    copy(send, recv, stream);
  }
  void do_reduce_scatter(ConstTensorView send, TensorView recv, Stream& stream) override {
    copy(send, recv, stream);
  }
  void do_all_gather(ConstTensorView send, TensorView recv, Stream& stream) override {
    copy(send, recv, stream);
  }
};

}  // namespace tessera::test
