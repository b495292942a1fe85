#include "runtime/plan/start_command.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/base/shell_word.h"
#include "runtime/run/config_file.h"
#include "runtime/run/option_table.h"

namespace tessera {
namespace {

using Words = std::vector<std::pair<std::string, std::string>>;

void leave_out(Words& words, std::string_view name) {
  std::erase_if(words, [name](const auto& word) { return word.first == name; });
}

// What a run may be held to, as the plan was.
bool is_limit(std::string_view name) {
  return name == "device-memory" || name == "host-memory";
}

// What a step is, which a command says though it be the default.
bool is_explicit(std::string_view name) {
  return name == "seq" || name == "micro-batch" || name == "global-batch";
}

Words given_words(const RunConfig& options) {
  Words words;
  for (const auto& [name, text] : options.texts.printed) {
    const OptionRow* row = find_option(name);
    const bool belongs = row != nullptr && (row->group != kPlanGroup || is_limit(name)) &&
                         (row->need.is_met == nullptr || row->need.is_met(options));
    if (belongs && (text != row->standard || is_explicit(name)) && !text.empty()) {
      words.emplace_back(name, text);
    }
  }
  return words;
}

void make(Words& words, const std::string& change) {
  constexpr std::string_view kWithout = "no --";
  constexpr std::string_view kDashes = "--";
  if (change.starts_with(kWithout)) {
    leave_out(words, change.substr(kWithout.size()));
    return;
  }
  const std::size_t blank = std::min(change.find(' '), change.size());
  const std::string name = change.substr(kDashes.size(), blank - kDashes.size());
  const std::string value = change.substr(std::min(blank + 1, change.size()));
  leave_out(words, name);
  if (const OptionRow* row = find_option(name);
      row == nullptr || value != row->standard || is_explicit(name)) {
    words.emplace_back(name, value.empty() ? "true" : value);
  }
}

std::string text_of(const std::string& name, const std::string& value) {
  const OptionForm form = find_option(name)->form;
  if (form == OptionForm::flag && value == "true") {
    return fmt::format("--{}", name);
  }
  // a value that begins with a dash would be taken for an option
  const auto one = [&](const std::string& each) {
    return fmt::format("--{}{}{}", name, each.starts_with('-') ? "=" : " ", shell_word(each));
  };
  if (!takes_several(form)) {
    return one(value);
  }
  std::vector<std::string> texts;
  for (const std::string& each : split_values(value)) {
    texts.push_back(form == OptionForm::list ? shell_word(each) : one(each));
  }
  return fmt::format("{}{}", form == OptionForm::list ? fmt::format("--{} ", name) : std::string(),
                     fmt::join(texts, " "));
}

}  // namespace

std::string start_command(const RunConfig& options, int ranks,
                          std::span<const std::string> changes) {
  Words words = given_words(options);
  for (const std::string& change : changes) {
    make(words, change);
  }
  std::vector<std::string> texts = {fmt::format("mpirun -np {} train", ranks)};
  for (const auto& [name, value] : words) {
    texts.push_back(text_of(name, value));
  }
  if (options.data.files.empty()) {
    texts.emplace_back("--data DATA.h5");
  }
  if (options.out.empty()) {
    texts.emplace_back("--out FOLDER");
  }
  return fmt::format("{}", fmt::join(texts, " "));
}

std::string launch_command(int argc, const char* const* argv, int ranks) {
  const auto is_set = [](const char* name) { return std::getenv(name) != nullptr; };
  // mpirun inside of a Slurm job sets its own variable; srun --mpi=pmi2 sets PMI_SIZE, as MPICH does
  const bool is_of_srun = is_set("SLURM_STEP_ID") && !is_set("OMPI_COMM_WORLD_SIZE");
  const bool is_of_mpirun = is_set("OMPI_COMM_WORLD_SIZE") || is_set("PMI_SIZE");
  std::vector<std::string> words;
  if (is_of_srun) {
    words.push_back(fmt::format("srun -n {}", ranks));
  } else if (is_of_mpirun || ranks > 1) {
    words.push_back(fmt::format("mpirun -np {}", ranks));
  }
  for (int i = 0; i < argc; ++i) {
    words.push_back(shell_word(argv[i]));
  }
  return fmt::format("{}", fmt::join(words, " "));
}

std::string continue_command(int argc, const char* const* argv, int ranks,
                             const RunConfig& options) {
  std::vector<const char*> words(argv, argv + argc);
  if (options.checkpoint.resume == ResumeKind::none) {
    constexpr std::string_view kOption = "--resume";
    constexpr std::string_view kNone = "none";
    const std::size_t before = words.size();
    for (std::size_t i = 0; i < words.size();) {
      const std::string_view word = words[i];
      const bool is_pair = word == kOption && i + 1 < words.size() && words[i + 1] == kNone;
      const bool is_one = word == "--resume=none";
      const auto at = words.begin() + static_cast<std::ptrdiff_t>(i);
      if (is_pair || is_one) {
        words.erase(at, at + (is_pair ? 2 : 1));
      } else {
        ++i;
      }
    }
    if (words.size() == before) {  // a file of --config has it
      words.push_back("--resume");
      words.push_back("auto");
    }
  }
  return launch_command(static_cast<int>(words.size()), words.data(), ranks);
}

}  // namespace tessera
