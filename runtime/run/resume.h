// From a folder of checkpoints to the state of a run: which step to continue, whether this run may
// continue it, and reading it on any number of ranks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/mpi_session.h"
#include "model/huggingface.h"
#include "model/nf4_files.h"
#include "runtime/checkpoint/layout.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/data/tokenizer_match.h"
#include "runtime/run/config.h"
#include "runtime/run/run_length.h"
#include "runtime/run/training_run.h"

namespace tessera {

/// The step that is continued, the same on every rank.
struct ResumePoint {
  std::filesystem::path folder;
  ManifestInfo info;
  std::vector<std::string> notes;  // what changes, and from which step it holds; for the log
  StepSearch search;               // rank 0's, which can fall back to the step before
  std::string fingerprint;         // rank 0's, VerifiedSteps: of the files before they were read
};

/// What fixes a run, as it goes into the manifest and is compared on resume.
struct RunIdentity {
  std::string config_json;
  std::string data_hash;
  Index chunk_rows = 0;
  std::string gemm_table_hash;
  Index data_sequences = 0;       // of one pass
  std::string adapter_json = {};  // to_adapter_json; empty: the model itself is trained
  std::string base_hash = {};     // of the frozen base, once it is loaded; empty without adapters
  std::string start_json = {};    // of ManifestInfo
};

/// Before a start that continues `point`, or begins anew.
[[nodiscard]] WorkDone done_by(const std::optional<ResumePoint>& point);

/// The same with the steps of a run that continues `point`, or begins anew (with_steps).
[[nodiscard]] RunConfig with_steps_of(const RunConfig& options, const RunIdentity& identity,
                                      const std::optional<ResumePoint>& point);

/// Chooses by --resume and --out: empty for a fresh run, which only a folder without any step
/// makes. Damaged and incomplete steps that are passed over are warned of. Rank 0 looks, all ranks
/// get the same answer. Changes nothing on disk, but for a step that local saves bring to --out
/// (promote_local_saves). Throws, agreed on all ranks: FormatError (a PATH
/// that does not verify; steps, but none that can be loaded; a newest step that cannot be read or
/// is not acceptable), ConfigError (`none` with steps in OUT; another model; another data order
/// without
/// --allow-data-change).
[[nodiscard]] std::optional<ResumePoint> choose_resume_point(MpiSession& session,
                                                             const RunConfig& options,
                                                             const RunIdentity& identity);

/// Reads this rank's part of the state, all arrays, into `shard`. Throws FormatError.
void read_state(CheckpointReader& reader, ShardState& shard);

/// Reads this rank's part of the state and checks the blocks it touches. If the data of a step
/// that was chosen in a run's folder turns out damaged, the step before is taken, loudly; `point`
/// is then that one. Throws as choose_resume_point.
void load_state(MpiSession& session, const RunConfig& options, const RunIdentity& identity,
                ResumePoint& point, TrainingRun& run);

/// Throws ConfigError where `source`, which --init names, holds another model than the run's.
void require_same_model(const std::string& config_json, const std::string& source,
                        const TrainingRun& run);

/// It has config.json. Throws FormatError where something other than a folder is there.
[[nodiscard]] bool is_huggingface_folder(const std::filesystem::path& folder);

/// The step that --init means (itself, or the newest complete one of a run), or a Hugging Face
/// folder as it is. Throws FormatError, ConfigError.
[[nodiscard]] std::filesystem::path init_folder(const std::string& source);

/// The model that --init names: of a run, a step or a Hugging Face folder. Throws FormatError,
/// ConfigError.
[[nodiscard]] ModelConfig init_model(const std::string& source);

/// The folder that init_folder gave, opened.
struct InitWeights {
  std::filesystem::path folder;
  // of the two, that which the folder is; both null: it is a step
  std::unique_ptr<HuggingFaceFolder> huggingface;
  std::unique_ptr<Nf4Reader> nf4;  // of `convert quantise`, or transformers'
};
/// Reads the headers. Throws FormatError, ConfigError.
[[nodiscard]] InitWeights open_weights(const std::filesystem::path& folder);

/// The tokenizer that they were trained with, where it is known. Throws FormatError.
[[nodiscard]] std::optional<TokenizerFacts> init_tokenizer(const InitWeights& weights);

/// Starts from these weights (--init): moments zero, step 0. If the data of a step turns out
/// damaged and --init names a run, the step before is taken, loudly. Returns the folder that was
/// loaded. Throws FormatError, ConfigError (another model).
std::filesystem::path load_weights(MpiSession& session, const RunConfig& options,
                                   const InitWeights& weights, TrainingRun& run);

/// The manifest of the state as it is now.
[[nodiscard]] ManifestInfo manifest_info(const RunConfig& options, const RunIdentity& identity,
                                         const TrainingPosition& position,
                                         const std::string& run_id, Index epoch);

/// Before the first save of a run that continues `point`: renames higher steps of its folder to
/// `.superseded-`, and says so. For rank 0. Throws ReadError, and renames nothing, if one of them
/// cannot be read.
void leave_abandoned_branch(const std::filesystem::path& run_folder, Index step);

}  // namespace tessera
