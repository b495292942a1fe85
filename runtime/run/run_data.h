// The data of a run, as its options name it, and whose tokens it is.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/mpi_session.h"
#include "kernels/device/arena.h"
#include "model/model_config.h"
#include "runtime/checkpoint/run_tokenizer.h"
#include "runtime/data/data_loader.h"
#include "runtime/data/data_set.h"
#include "runtime/data/tokenizer_match.h"
#include "runtime/launch/startup_check.h"
#include "runtime/monitor/metrics.h"
#include "runtime/run/config.h"
#include "runtime/run/resume.h"
#include "runtime/run/run_length.h"

namespace tessera {

/// What --data and --eval-data take, for messages.
inline constexpr std::string_view kTokenFile = "a token file (tokenize makes them)";
inline constexpr std::string_view kTokenFiles =
    "token files (tokenize makes them), with spaces between several";

/// The token files of a word of --data. Throws as parse_data_set, and ConfigError, FormatError
/// where it is not there or cannot be read.
[[nodiscard]] DataSet open_data_set(const std::string& text);

/// An evaluation file of a run.
struct EvalSet {
  std::string name;  // empty: it is the only one, and has none
  std::unique_ptr<EvalSequences> sequences;
};
/// "--eval-data", "--eval-data chat".
[[nodiscard]] std::string option_text(const EvalSet& set);

/// The training and evaluation data of one rank, over memory of its own arena.
class RunData {
 public:
  /// `own_vocab`: the model's; 0: it takes the data's, which `config` has by now.
  RunData(const RunConfig& options, const ModelConfig& config, Index own_vocab, Communicator& comm,
          Arena& arena);

  [[nodiscard]] DataLoader& loader() noexcept { return *loader_; }
  /// Of --data, a word each.
  [[nodiscard]] std::span<const DataSet> sets() const noexcept { return sets_; }
  [[nodiscard]] std::span<const EvalSet> eval_sets() const noexcept { return eval_sets_; }
  [[nodiscard]] TokenizerCheck& tokenizers() noexcept { return tokenizers_; }
  /// Of the first file, for which the others stand.
  [[nodiscard]] TokenizerFacts tokenizer() const {
    return tokenizer_of(loader_->files().front(), "--data");
  }

  /// One pass over the training data.
  [[nodiscard]] DataPass pass() const;

  [[nodiscard]] Index file_count() const;
  [[nodiscard]] Index document_count() const;

  /// What packing made of the training data; none where documents are joined.
  [[nodiscard]] std::optional<PackingCounts> packing() const;

  /// What all ranks must have been given alike.
  [[nodiscard]] std::vector<NamedValue> values() const;

  /// What an evaluation was made over. Bits per byte are known where the text's bytes are.
  [[nodiscard]] static EvalContext context_of(const EvalSet& set, const EvalReport& report);

 private:
  void require_alike_sets() const;
  void open_eval_sets(const RunConfig& options, Index vocab, const BatchAllocator& allocate);
  // `model_vocab` 0: the model takes the data's.
  void compare_tokenizers(Index model_vocab);

  Arena& arena_;
  TokenizerCheck tokenizers_;
  std::vector<DeviceBuffer> buffers_;
  std::unique_ptr<DataLoader> loader_;
  std::vector<DataSet> sets_;
  std::vector<EvalSet> eval_sets_;
  DocumentMode documents_;
};

/// What a checkpoint's folder must say of the data's tokens: the tokenizer of the files that tell
/// theirs, if it is one.
[[nodiscard]] RunTokenizer run_tokenizer(std::span<const TokenFile> data);

/// Compares the data's tokenizer with that of the weights, of a run that is continued or of --init.
/// Rank 0 looks. Collective. Throws ConfigError, FormatError, agreed.
void compare_tokenizer_of_weights(MpiSession& session, const RunIdentity& identity,
                                  const std::optional<ResumePoint>& point,
                                  const std::optional<InitWeights>& weights, RunData& data);

}  // namespace tessera
