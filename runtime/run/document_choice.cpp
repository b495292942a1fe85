#include "runtime/run/document_choice.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "collectives/mpi_control.h"
#include "kernels/base/error.h"
#include "kernels/base/file_status.h"
#include "kernels/base/quantity.h"
#include "kernels/base/read_error.h"
#include "model/json_text.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/data/token_file.h"
#include "runtime/launch/agree.h"
#include "runtime/run/run_data.h"

namespace tessera {
namespace {

// What `auto` makes of the data: chats and masks speak of documents, if there are borders between
// them.
DocumentMode mode_of_data(const RunConfig& options) {
  bool speaks_of_documents = false;
  for (const std::string& text : options.data.files) {
    for (const std::filesystem::path& path : open_data_set(text).files) {
      const TokenFile file(path);
      if (file.document_count() == 1) {
        return DocumentMode::joined;
      }
      speaks_of_documents = speaks_of_documents || file.has_mask() || file.info().is_chats;
    }
  }
  return speaks_of_documents ? DocumentMode::separate : DocumentMode::joined;
}

}  // namespace

// Whether the step may be continued, and whether its folder can be reached, is found out later by
// those who speak of it.
std::optional<StoredOptions> options_of_step(const RunConfig& options) try {
  const CheckpointConfig& checkpoint = options.checkpoint;
  const std::filesystem::path folder =
      checkpoint.resume == ResumeKind::path ? checkpoint.resume_path : options.out;
  if (checkpoint.resume == ResumeKind::none || folder.empty() || !path_exists(folder)) {
    return std::nullopt;
  }
  ReadRetry retry;
  std::vector<std::filesystem::path> steps;
  if (is_step_folder(folder)) {
    steps.push_back(folder);
  } else {
    for (const NamedStep& step : named_steps(folder)) {
      steps.insert(steps.begin(), step.path);  // the newest first
    }
  }
  for (const std::filesystem::path& step : steps) {
    const StepFolder found = check_step(step, CheckDepth::files, retry);
    if (!found.info) {
      continue;
    }
    const nlohmann::json stored = parse_json_line(found.info->options_json);
    if (!stored.is_object() || stored.empty()) {
      return std::nullopt;  // an imported model
    }
    StoredOptions texts;
    for (const auto& [name, value] : stored.items()) {
      if (value.is_string()) {
        texts[name] = value.get<std::string>();
      }
    }
    return texts;
  }
  return std::nullopt;
} catch (const ReadError&) {
  return std::nullopt;
}

std::optional<DocumentMode> documents_of_step(const RunConfig& options) {
  const std::optional<StoredOptions> stored = options_of_step(options);
  if (!stored) {
    return std::nullopt;
  }
  const auto found = stored->find("documents");
  return found != stored->end() && found->second == document_mode_name(DocumentMode::separate)
             ? DocumentMode::separate
             : DocumentMode::joined;
}

RunConfig agreed_documents(MpiSession& session, const RunConfig& options) {
  RunConfig known = options;
  if (!known.data.documents) {
    // The first rank looks: whether the others' files are the same is compared when all open them.
    const std::string mine = agree(session, [&] {
      if (session.rank() != 0) {
        return std::string();
      }
      const std::optional<DocumentMode> before = documents_of_step(options);
      return std::string(document_mode_name(before ? *before : mode_of_data(options)));
    });
    const bool is_separate =
        session.control().gather_text(mine).front() == document_mode_name(DocumentMode::separate);
    known.data.documents = is_separate ? DocumentMode::separate : DocumentMode::joined;
  }
  set_text(known, "documents", std::string(document_mode_name(*known.data.documents)));
  return known;
}

std::string packing_text(const PackingCounts& counts, Index sequence_length) {
  constexpr double kPercent = 100;
  const Index padding = counts.padding(sequence_length);
  std::string text = fmt::format(
      "documents are separate: {} in {} {}, {:.1f}% full ({} {} of padding)",
      grouped(counts.documents), grouped(counts.sequences),
      counts.sequences == 1 ? "sequence" : "sequences", kPercent * counts.fill(sequence_length),
      grouped(padding), padding == 1 ? "place" : "places");
  if (counts.cut > 0) {
    text += fmt::format("; {} longer than a sequence {} cut", grouped(counts.cut),
                        counts.cut == 1 ? "was" : "were");
  }
  if (counts.left_out > 0) {
    text += fmt::format("; {} of one token {} left out", grouped(counts.left_out),
                        counts.left_out == 1 ? "is" : "are");
  }
  return text;
}

}  // namespace tessera
