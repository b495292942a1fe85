#include "jobs/convert/quantise.h"

#include <algorithm>
#include <atomic>
#include <iostream>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "jobs/convert/companions.h"
#include "jobs/convert/shared_progress.h"
#include "jobs/program.h"
#include "kernels/base/error.h"
#include "kernels/base/file_status.h"
#include "kernels/base/parallel.h"
#include "kernels/nf4.h"
#include "model/nf4_files.h"
#include "model/partial_folder.h"
#include "runtime/checkpoint/export_companions.h"
#include "runtime/checkpoint/weight_source.h"

namespace tessera {
namespace {

constexpr Index kPiece = Index{1} << 20;  // elements that a thread reads at a time

int threads_here() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

class Quantiser {
 public:
  Quantiser(const ModelSource& model, Nf4Writer& writer)
      : model_(model),
        writer_(writer),
        threads_(threads_here()),
        progress_("quantising", writer.tensor_bytes()) {}

  void run() {
    for (const Nf4Tensor& tensor : writer_.tensors()) {
      tensor.is_packed ? pack(tensor) : copy(tensor);
    }
  }
  /// content_hash of the model.
  [[nodiscard]] std::uint64_t hash() const noexcept { return hash_; }
  [[nodiscard]] Index matrices() const noexcept { return matrices_; }
  [[nodiscard]] Index packed_elements() const noexcept { return packed_elements_; }
  [[nodiscard]] double seconds() const { return progress_.seconds(); }

 private:
  void pack(const Nf4Tensor& tensor) {
    const std::int64_t before = writer_.written_bytes();
    packed_.resize(static_cast<std::size_t>(nf4_parts(tensor.count).bytes));
    quantize_nf4(tensor.name, read(tensor.unit, tensor.first, tensor.first + tensor.count), packed_,
                 threads_);
    writer_.write(tensor, packed_);
    packed_elements_ += tensor.count;
    ++matrices_;
    progress_.add(writer_.written_bytes() - before);
  }
  void copy(const Nf4Tensor& tensor) {
    constexpr Index kMost = Index{1} << 24;  // elements at a time
    for (Index begin = 0; begin < tensor.count; begin += kMost) {
      const std::int64_t before = writer_.written_bytes();
      const Index end = std::min(tensor.count, begin + kMost);
      const std::span<const float> values =
          read(tensor.unit, tensor.first + begin, tensor.first + end);
      if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) {
        throw FormatError(fmt::format("{} has numbers that are not finite", tensor.name),
                          TESSERA_HERE);
      }
      writer_.write(tensor, begin, values);
      progress_.add(writer_.written_bytes() - before);
    }
  }

  // Elements [first, last) of the unit, until the next call. Blocks of the hash that begin there are
  // hashed, for which those behind it up to the end of a block are read too.
  std::span<const float> read(UnitId id, Index first, Index last) {
    const ParamUnit& unit = model_.layout().unit(id);
    const Index end = std::min(unit.count, round_up(last, kHashedElements));
    values_.resize(static_cast<std::size_t>(end - first));
    const Index first_piece = first / kPiece;
    share_among_threads(divide_up(end, kPiece) - first_piece, threads_, [&] {
      return [&](Index i) {
        const Index from = std::max(first, (first_piece + i) * kPiece);
        const Index to = std::min(end, (first_piece + i + 1) * kPiece);
        const std::span<float> here = std::span(values_).subspan(
            static_cast<std::size_t>(from - first), static_cast<std::size_t>(to - from));
        model_.read(id, from, here);
        if (const Index hashed = round_up(from, kHashedElements); hashed < to) {
          hash_ += hash_of_blocks(unit, id, hashed,
                                  here.subspan(static_cast<std::size_t>(hashed - from)));
        }
      };
    });
    return std::span<const float>(values_).first(static_cast<std::size_t>(last - first));
  }

  const ModelSource& model_;
  Nf4Writer& writer_;
  Index threads_;
  SharedProgress progress_;
  std::vector<float> values_;
  std::vector<std::byte> packed_;
  std::atomic<std::uint64_t> hash_ = 0;
  Index matrices_ = 0;
  Index packed_elements_ = 0;
};

void refuse_packed(const ConvertOptions& options) {
  if (is_nf4_folder(options.from)) {
    throw ConfigError(fmt::format("{} is in 4 bits already: give the model that it was made of",
                                  options.from.string()),
                      TESSERA_HERE);
  }
}

}  // namespace

void quantise_model(const ConvertOptions& options) {
  refuse_packed(options);
  const ModelSource model(options.from, "quantise");
  PartialFolder place(options.to);
  HuggingFaceOptions files = options.huggingface;
  files.type = model.is_bf16() ? SafetensorsType::bf16 : SafetensorsType::f32;
  Nf4Writer writer(place.path(), model.config(), files, SafetensorsShare::whole);
  const int copied = path_exists(model.folder() / kConfigFile)
                         ? copy_companions(model.folder(), place.path())
                         : write_companions(model.folder(), place.path());
  Quantiser quantiser(model, writer);
  quantiser.run();
  writer.close();
  writer.write_config();
  add_nf4_origin(place.path(),
                 {.base_hash = quantiser.hash(),
                  .content_hash = Nf4Reader(place.path()).content_hash(threads_here())});
  place.finish(kConfigFile);
  print_lines(fmt::format(
      "quantised {} to {}: {} matrices of {} elements in 4 bits, the rest as {}, {}\n",
      options.from.string(), options.to.string(), quantiser.matrices(), quantiser.packed_elements(),
      type_name(files.type), rate_text(writer.tensor_bytes(), quantiser.seconds())));
  if (copied > 0) {
    print_lines(fmt::format("with {} of the model\n", counted(copied, "file")));
  }
}

}  // namespace tessera
