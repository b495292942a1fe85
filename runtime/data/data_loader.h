// Batches of token sequences, the same for a given (seed, position) whatever the number of ranks.
//
// A file of n tokens has ceil((n - 1) / T) sequences; sequence w has the inputs w*T .. w*T+T-1, and
// as targets the same tokens moved by one. The last one may be short: it is filled up with token 0
// and ignored targets. A target is ignored too where it begins another document, and where the
// file's mask says so. Files are mixed and shuffled as sequence_order.h says.
//
// With DocumentMode::separate a sequence is what document_packing.h makes of the file: whole documents
// that do not see each other, and behind them padding.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/batch_source.h"
#include "runtime/data/document_packing.h"
#include "runtime/data/sequence_order.h"
#include "runtime/data/token_file.h"

namespace tessera {

/// One file and its share of the sequences of a run. Without weights files are mixed by size, so
/// that an epoch has each sequence of each file once. Files of one set share its weight by size.
struct TokenSource {
  std::filesystem::path path;
  std::optional<double> weight;
  Index set = -1;  // files that follow each other and have the same number; -1: it is one alone
};

/// i32 of one micro-batch of N tokens in the loader's memory.
[[nodiscard]] Index batch_elements(Index N, DocumentMode documents);

/// Gives `elements` i32 in host memory (pinned on CUDA) that live as long as the loader; called in
/// constructors only. Data may be null in a dry run. The part of `name` before '/' is "batches".
using BatchAllocator = std::function<TensorView(Index elements, std::string_view name)>;

struct DataLoaderOptions {
  std::vector<TokenSource> files;
  Index sequence_length = 0;  // T
  Index micro_batch = 0;      // B, sequences
  Index global_batch = 0;     // sequences of one step, all ranks; a multiple of micro_batch
  std::uint64_t seed = 0;
  int rank = 0;
  int world_size = 1;
  Index vocab = 0;  // of the model
  DocumentMode documents = DocumentMode::joined;
};

class DataLoader final : public BatchSource {
 public:
  /// Opens and checks the files, packs their documents where they are separate, and starts the
  /// thread. Throws ConfigError if a file is missing, has not one full sequence, or not one border
  /// of documents where they are separate, or a vocabulary above the model's; FormatError if one is
  /// damaged or has no target.
  DataLoader(DataLoaderOptions options, const BatchAllocator& allocate);
  ~DataLoader() override;
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  void prefetch(Index position) override;
  [[nodiscard]] Index prefetched_targets() override;
  [[nodiscard]] Index prefetched_padding() const override;
  void take() override;
  [[nodiscard]] Batch batch(Index round) override;

  /// Sequences of all files together: an epoch is so many positions.
  [[nodiscard]] Index sequences() const noexcept;
  [[nodiscard]] Index epoch_of(Index position) const noexcept { return position / sequences(); }
  /// What packing made of all files together. Requires: DocumentMode::separate.
  [[nodiscard]] PackingCounts packing() const;
  /// The sequences at positions [begin, end) of the data order.
  [[nodiscard]] std::vector<SequenceId> sequence_ids(Index begin, Index end) const;
  /// Hash of all that fixes the data order, 32 hexadecimal digits: the files' contents and weights,
  /// T and the seed. Not their paths, nor the batch sizes.
  [[nodiscard]] const std::string& data_hash() const noexcept;
  [[nodiscard]] const std::vector<TokenFile>& files() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct EvalSequencesOptions {
  std::filesystem::path file;
  Index sequence_length = 0;  // T
  Index micro_batch = 0;      // B
  Index max_sequences = 0;    // at most so many, spread evenly over the file; 0: all
  Index vocab = 0;
  DocumentMode documents = DocumentMode::joined;
};

/// Sequences of a file in file order, in micro-batches numbered over all ranks: all of them, or so
/// many that are spread evenly over it (evenly_spread). Which ones depends on the file's length, T
/// and their number alone. The last micro-batch is filled up with sequences of ignored targets.
class EvalSequences {
 public:
  /// Throws as DataLoader does, but for a file without targets.
  EvalSequences(EvalSequencesOptions options, const BatchAllocator& allocate);
  ~EvalSequences();
  EvalSequences(const EvalSequences&) = delete;
  EvalSequences& operator=(const EvalSequences&) = delete;

  /// Sequences that are evaluated, and all of the file.
  [[nodiscard]] Index sequences() const noexcept;
  [[nodiscard]] Index file_sequences() const noexcept;
  [[nodiscard]] Index micro_batches() const noexcept;
  /// Reads micro-batch `index`, in this thread. Valid until the third call after this one.
  /// Requires: 0 <= index < micro_batches(). Throws FormatError as BatchSource does.
  [[nodiscard]] Batch batch(Index index);
  [[nodiscard]] const TokenFile& file() const noexcept;
  /// None where documents are joined.
  [[nodiscard]] std::optional<PackingCounts> packing() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
