// A model whose blocks' matrices are in nf4 (kernels/nf4.h), as a Hugging Face folder in the layout in
// which transformers saves a model that bitsandbytes has quantised, so that each opens the other's:
// config.json with quantization_config, and safetensors files with, for each matrix NAME,
//
//   NAME                                    u8 [ceil(n / 2), 1]   codes
//   NAME.absmax                             u8 [ceil(n / 64)]     scale codes
//   NAME.nested_absmax                      f32                   scales of 256 of them
//   NAME.quant_map, NAME.nested_quant_map   f32 [16], [256]       what codes stand for
//   NAME.quant_state.bitsandbytes__nf4      u8                    JSON: shape, type, mean of the absmax
//
// Embedding, head, norm gains and biases are stored as in any such folder. config.json may have the
// hash of the model that was quantised, by which checkpoints of adapters name their base.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/huggingface_files.h"
#include "model/model_config.h"
#include "model/param_layout.h"
#include "model/safetensors.h"

namespace tessera {

/// A tensor of Hugging Face's, and where its elements are stored in our units.
struct Nf4Tensor {
  std::string name;  // "model.layers.3.self_attn.q_proj.weight"
  std::vector<Index> shape;
  UnitId unit;
  Index first;  // element of the unit
  Index count;
  bool is_packed;  // in nf4: a matrix of a block
};

/// All of a model's, in layout order: the elements of all units.
[[nodiscard]] std::vector<Nf4Tensor> nf4_tensors(const ModelConfig& config,
                                                 const ParamLayout& layout);

/// Whether the folder's config.json says that its weights are bitsandbytes' 4 bits, of whatever kind.
/// Throws FormatError where that file cannot be read.
[[nodiscard]] bool is_nf4_folder(const std::filesystem::path& folder);

/// Makes the files of the tensors in `folder`, with their headers and room for all elements, for
/// processes that then write parts of them. Throws WriteError.
void create_nf4_files(const std::filesystem::path& folder, const ModelConfig& config,
                      const HuggingFaceOptions& options);

/// The files of such a folder on the way out.
class Nf4Writer {
 public:
  /// `options`: the type of what is not packed. `whole`: makes the files; `part`: opens those that
  /// `create_nf4_files` made for the same model and options. A matrix's tensors are in one file.
  /// Throws WriteError.
  Nf4Writer(std::filesystem::path folder, ModelConfig config, const HuggingFaceOptions& options,
            SafetensorsShare share);

  [[nodiscard]] const std::vector<Nf4Tensor>& tensors() const noexcept { return tensors_; }
  /// Bytes of all tensors, and of those that this object has written.
  [[nodiscard]] std::int64_t tensor_bytes() const noexcept { return tensor_bytes_; }
  [[nodiscard]] std::int64_t written_bytes() const noexcept { return written_bytes_; }

  /// Writes a matrix as quantize_nf4 has packed it. In any order, from any thread, each once. Throws
  /// WriteError.
  void write(const Nf4Tensor& tensor, std::span<const std::byte> packed);
  /// Writes elements begin, begin + 1, ... of a tensor that is not packed, rounded to nearest even
  /// where the type is bf16.
  void write(const Nf4Tensor& tensor, Index begin, std::span<const float> values);
  /// Requires, of whole files: everything has been written. Throws WriteError.
  void close();
  /// Writes config.json, the index where there are several files, and a generation_config.json that
  /// says nothing where there is none yet. Throws WriteError.
  void write_config() const;

 private:
  struct Place {
    SafetensorsWriter* file;
    std::int64_t offset;  // bytes, among the file's tensors
  };
  void write_at(const std::string& name, std::int64_t offset, std::span<const std::byte> bytes);

  std::filesystem::path folder_;
  ModelConfig config_;
  HuggingFaceOptions options_;
  std::vector<Nf4Tensor> tensors_;
  std::vector<std::unique_ptr<SafetensorsWriter>> files_;
  std::map<std::string, std::string> weight_map_;  // name to file name
  std::map<std::string, Place> places_;            // by name
  std::int64_t tensor_bytes_ = 0;
  std::atomic<std::int64_t> written_bytes_ = 0;
};

/// What a folder says of the model that was quantised. Programs that edit a folder may keep it beside
/// other weights: it counts while these have the same hash.
struct Nf4Origin {
  std::uint64_t base_hash;     // content_hash of that model
  std::uint64_t content_hash;  // Nf4Reader::content_hash of the folder
};

/// Adds it to the folder's config.json. Throws FormatError, WriteError.
void add_nf4_origin(const std::filesystem::path& folder, const Nf4Origin& origin);

/// Reads such a folder, ours or one of transformers'. Safe from several threads.
class Nf4Reader {
 public:
  /// Reads config.json, the headers of all files and what the matrices' states say.
  /// Throws FormatError (as HuggingFaceFolder does; or a matrix that is not in nf4, in blocks of other
  /// sizes than 64 and 256, with other values of codes, or with a scale that is not finite) or
  /// ConfigError (a model that tessera does not train, or another kind of quantisation).
  explicit Nf4Reader(const std::filesystem::path& folder);

  [[nodiscard]] const ModelConfig& config() const noexcept { return config_; }
  [[nodiscard]] const ParamLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] std::int64_t tensor_bytes() const noexcept { return tensor_bytes_; }
  /// None: the folder does not say.
  [[nodiscard]] std::optional<Nf4Origin> origin() const noexcept { return origin_; }
  /// Of what is read: the sum of hash_of_blocks of the blocks that begin in what is not packed, and of XXH3
  /// of each packed matrix, whose seed is that of its name.
  [[nodiscard]] std::uint64_t content_hash(int threads) const;
  /// The hash of the model that was quantised where the folder says it and has this content_hash; else
  /// `content`.
  [[nodiscard]] std::uint64_t hash_of_base(std::uint64_t content) const noexcept;

  /// Fills `packed`, of nf4_parts(n).bytes bytes, with the matrix of this name as quantize_nf4 packs it.
  /// Throws FormatError where a file can no longer be read. Requires: a matrix of a block.
  void read(std::string_view name, std::span<std::byte> packed) const;
  /// Fills `values` with elements begin, begin + 1, ... of a unit, matrices widened to f32 as
  /// kernels/nf4.h says; beyond its count zeros. Throws as `read`.
  void read_unit(UnitId unit, Index begin, std::span<float> values) const;

 private:
  struct Source {
    Nf4Tensor tensor;
    const SafetensorsFile* file;
    const SafetensorsTensor* values;  // codes of a matrix
    const SafetensorsTensor* scale_codes = nullptr;
    const SafetensorsTensor* scales = nullptr;
    float mean = 0;
  };
  class Opening;
  void widen(const Source& source, Index begin, std::span<float> values) const;
  [[nodiscard]] std::uint64_t hash_of(const Nf4Tensor& tensor) const;

  ModelConfig config_;
  ParamLayout layout_;
  std::optional<Nf4Origin> origin_;
  std::vector<SafetensorsFile> files_;      // not changed once Sources refer to them
  std::vector<std::vector<Source>> units_;  // in the order of their elements
  std::map<std::string, const Source*, std::less<>> by_name_;  // matrices
  std::int64_t tensor_bytes_ = 0;
};

}  // namespace tessera
