#include "runtime/run/gemm_choice.h"

#include <numeric>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "collectives/mpi_control.h"
#include "collectives/mpi_session.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/base/hash.h"
#include "kernels/base/input_file.h"
#include "kernels/base/log.h"
#include "kernels/base/output_file.h"
#include "kernels/gemm_tuning.h"
#include "model/initialization.h"
#include "model/whole_model.h"
#include "runtime/launch/agree.h"

namespace tessera {
namespace {

// Gradients that nobody reads.
class DroppedGradients final : public GradSink {
 public:
  DroppedGradients(const ParamLayout& layout, DType dtype, Arena& arena) {
    for (const ParamUnit& unit : layout.units()) {
      units_.push_back(arena.allocate(MemoryKind::device,
                                      unit.place == GradPlace::vocabulary ? DType::f32 : dtype,
                                      {unit.count}, "tuning/gradients"));
    }
  }
  TensorView acquire(UnitId unit, Stream&) override {
    return units_[static_cast<std::size_t>(unit)].view();
  }
  void commit(UnitId, Stream&) override {}

 private:
  std::vector<DeviceBuffer> units_;
};

constexpr std::size_t kLargestTable = std::size_t{64} << 20U;

std::string read_table(const std::filesystem::path& file) {
  std::string text = read_whole_file(file, kLargestTable);
  const std::string_view foreign = foreign_content(std::string_view(text).substr(0, kForeignBytes));
  if (!foreign.empty()) {
    throw FormatError(
        fmt::format("{} is not a table of --tune-gemm: it is {}", file.string(), foreign),
        TESSERA_HERE);
  }
  return text;
}

}  // namespace

void tune_gemm(const ModelConfig& config, const ScratchOptions& scratch, Device device) {
  ModelConfig one_block = config;
  one_block.num_layers = 1;
  ScratchOptions of_block = scratch;
  of_block.precision.not_quantized.clear();
  const ParamLayout layout(one_block);
  const KernelTable& kernels = kernel_table(device.kind);
  Arena arena(device, ArenaMode::allocate);
  Stream stream(device, StreamPriority::normal, "tuning");
  TrainingScratch room(kernels, one_block, of_block, arena);
  // Fresh weights: products of zeros draw less power, and run faster, than those of training.
  WholeModel params(
      layout, scratch.precision.params,
      [&](UnitId unit, std::span<float> values) {
        initial_values(one_block, layout, unit, 0, 0, values);
      },
      arena, stream);
  DroppedGradients grads(layout, scratch.precision.grads, arena);
  Transformer model(kernels, one_block, layout, scratch.batch, scratch.attention,
                    room.activations(), room.loss(), room.quantized());

  const Index tokens = scratch.batch.tokens();
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(tokens));
  for (Index i = 0; i < tokens; ++i) {
    numbers[static_cast<std::size_t>(i)] =
        static_cast<std::int32_t>(i * config.vocab_size / tokens);  // in order of the tokens
  }
  std::vector<std::int32_t> order(numbers.size());
  std::iota(order.begin(), order.end(), 0);
  const float scale = 1.0F / static_cast<float>(tokens);
  const auto send = [&](const void* from, DType dtype, const TensorView& to) {
    copy_async({from, dtype, to.shape, Device{}}, to, stream);
  };
  send(numbers.data(), DType::i32, room.inputs());
  send(numbers.data(), DType::i32, room.targets());
  send(order.data(), DType::i32, room.token_order());
  send(&scale, DType::f32, room.scale());

  set_gemm_tuning(device, GemmTuning::on);
  const DeviceBatch batch = {room.inputs(), room.targets(), room.token_order()};
  model.forward_backward(batch, room.scale(), room.losses(), params, grads, stream);
  if (room.quantized() != nullptr) {  // blocks that are left out, and evaluation
    Transformer plain(kernels, one_block, layout, scratch.batch, scratch.attention,
                      room.activations(), room.loss());
    plain.forward_backward(batch, room.scale(), room.losses(), params, grads, stream);
  }
  stream.synchronize();
  set_gemm_tuning(device, GemmTuning::off);
}

std::string choose_gemm(MpiSession& session, const std::filesystem::path& file,
                        const ModelConfig& config, const ScratchOptions& scratch, Device device) {
  // Rank 0 alone reads, times and writes: the file may be on its host alone.
  const std::string mine = agree(session, [&]() -> std::string {
    if (session.rank() != 0) {
      return {};
    }
    bool is_table = false;
    const OutputRules rules = {
        .option = "--tune-gemm",
        .what = "a GEMM table",
        .is_ours = [&is_table](const std::filesystem::path&) { return is_table; }};
    if (path_exists(file)) {
      use_gemm_table(device, read_table(file), file.string());
      is_table = true;  // or it would have been refused
    }
    static_cast<void>(find_output_place(file, rules));  // before minutes of timing
    const std::uint64_t hash = gemm_table_hash(device);
    tune_gemm(config, scratch, device);
    std::string table = gemm_table(device);
    if (gemm_table_hash(device) != hash) {
      write_output(file, rules, table);
      log_line(LogLevel::info, fmt::format("--tune-gemm: wrote {}", file.string()));
    }
    return table;
  });
  const std::string table = session.control().gather_text(mine).front();
  agree(session, [&] { use_gemm_table(device, table, file.string()); });
  log_line(LogLevel::verbose, "GEMMs:\n" + table);
  return hash_text(gemm_table_hash(device));
}

}  // namespace tessera
