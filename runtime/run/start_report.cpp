#include "runtime/run/start_report.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "collectives/communicator.h"
#include "kernels/base/quantity.h"
#include "runtime/checkpoint/run_tokenizer.h"
#include "runtime/run/document_choice.h"
#include "runtime/run/option_checks.h"
#include "runtime/run/run_length.h"
#include "runtime/run/run_model.h"

namespace tessera {
namespace {

// Hosts that a script has left out of this start because they did not answer.
void announce_lost_hosts(TrainLoop& loop) {
  const char* lost = std::getenv("TESSERA_LOST_HOSTS");
  if (lost != nullptr && *lost != '\0') {
    loop.warn("lost hosts", fmt::format("this start is without what did not answer: {}", lost),
              {{"hosts", lost}});
  }
}

void announce_resume(TrainLoop& loop, const RunConfig& options, const ResumePoint& point) {
  if (!options.adapters.init_folder.empty()) {
    loop.announce("resume",
                  fmt::format("--init-adapter {} was for step 1: its weights are not read",
                              options.adapters.init_folder));
  }
  if (!options.model.init.empty() && !options.adapters.rank) {
    loop.announce("resume",
                  fmt::format("--init {} was for step 1 and is not read", options.model.init));
  }
  if (point.info.step >= options.steps) {
    loop.announce("resume", fmt::format("{} is at step {} already, and the run's length is {}: "
                                        "nothing is left to do; give a larger one to continue",
                                        options.out, point.info.step, length_text(options)));
    return;
  }
  for (const std::string& note : point.notes) {
    loop.announce("resume", note);
  }
}

void announce_data(TrainLoop& loop, const std::string& event, const RunConfig& options,
                   RunData& data, const WorkDone& done) {
  loop.note(event, pass_text(options, data.pass(), done));
  if (const std::optional<PackingCounts> packing = data.packing()) {
    const std::string text = packing_text(*packing, options.batch.seq);
    if (packing->cut > 0 || packing->left_out > 0) {
      loop.announce(event, text);
    } else {
      loop.note(event, text);
    }
  }
  for (const std::string& note : data.tokenizers().notes()) {
    loop.announce(event, note);
  }
  for (const DataSet& set : data.sets()) {
    if (set.files.size() > 1 || set.files.front() != set.path) {
      loop.note(event, fmt::format("--data {} has {}: {} to {}", set.path.string(),
                                   counted(std::ssize(set.files), "token file"),
                                   set.files.front().string(), set.files.back().string()));
    }
    for (const std::string& note : set.notes) {
      loop.announce(event, note);
    }
  }
  const std::span<const TokenFile> files = data.loader().files();
  const std::span<const EvalSet> sets = data.eval_sets();
  for (std::size_t i = 0; i < files.size(); ++i) {
    const auto is_same = [&](const TokenFile& other) {
      return other.content_hash() == files[i].content_hash();
    };
    const std::span<const TokenFile> before = files.first(i);
    const auto same = std::find_if(before.begin(), before.end(), is_same);
    if (same != before.end()) {
      loop.warn(event, fmt::format("--data {} holds the same tokens as {}: both are used",
                                   files[i].path().string(), same->path().string()));
      continue;
    }
    for (const EvalSet& set : sets) {
      if (is_same(set.sequences->file())) {
        loop.warn(event, fmt::format("--eval-data {} is among the training data: evaluations "
                                     "measure what was trained on",
                                     set.sequences->file().path().string()));
      }
    }
  }
  for (const EvalSet& set : sets) {
    const EvalSequences& eval = *set.sequences;
    loop.note("evaluation",
              fmt::format("evaluations{} take {} of {}, spread evenly over it",
                          set.name.empty() ? "" : fmt::format(" of {}", set.name),
                          part_text(eval.sequences(), eval.file_sequences(), "sequence"),
                          eval.file().path().string()));
    if (!eval.file().has_targets()) {
      loop.warn("evaluation", fmt::format("{} has no target: its evaluations will have no loss",
                                          eval.file().path().string()));
    }
  }
}

// What of --trace lies before the step at which this start begins.
std::string trace_text(const StepRange& steps, std::int64_t done) {
  if (steps.last <= done) {
    return fmt::format("--trace {}:{}: these steps were done before, up to step {}: no timeline is "
                       "written",
                       steps.first, steps.last, done);
  }
  return steps.first > done ? std::string()
                            : fmt::format("--trace {}:{}: the timeline begins at step {}, where "
                                          "this start does",
                                          steps.first, steps.last, done + 1);
}

// When work is kept: who never heard of --save-every loses a night.
std::string save_text(const RunConfig& options) {
  return options.checkpoint.save_every == 0 && options.checkpoint.local_every == 0 &&
                 options.checkpoint.save_at_end
             ? "nothing is saved before the last step or a stop: --save-every STEPS saves on the "
               "way"
             : std::string();
}

// A model without a tokenizer is half of what --export is for. Of rank 0.
std::string export_text(const RunConfig& options) {
  if (options.model_export.folder.empty()) {
    return {};
  }
  const std::optional<RunTokenizer> tokenizer = read_run_tokenizer(options.out);
  if (tokenizer && !kept_files(files_of(*tokenizer)).empty()) {
    return {};
  }
  return fmt::format("{} will have no tokenizer: {}", options.model_export.folder,
                     tokenizer && tokenizer->kind == kBytesKind
                         ? "the run's tokens are bytes, of which there is no file"
                         : "the ids of --data were made elsewhere, by one that is not known here");
}

std::string precision_text(const RunConfig& options) {
  return precision_choice(options) == Precision::fp8 && options.compute.device == DeviceKind::cpu
             ? "--precision fp8 on cpu quantises to the same numbers as on cuda and multiplies "
               "them in f32: slower than --precision f32, for trials"
             : std::string();
}

}  // namespace

void StartTimes::end_part(const char* name) {
  const double now = host_seconds();
  parts_.push_back({name, now - std::exchange(begin_, now)});
}

void announce_times(TrainLoop& loop, const StartTimes& times, bool verbose) {
  constexpr double kLong = 30;
  double all = 0;
  nlohmann::ordered_json fields;
  std::vector<std::string> texts;
  for (const StartTimes::Part& part : times.parts()) {
    all += part.seconds;
    fields["start_seconds"][part.name] = part.seconds;
    texts.push_back(fmt::format("{} {:.1f} s", part.name, part.seconds));
  }
  const std::string text = fmt::format("the start took {:.1f} s: {}", all, fmt::join(texts, ", "));
  if (verbose || all > kLong) {
    loop.announce("start times", text, fields);
  } else {
    loop.record("start times", fields);
  }
}

void announce_limit(TrainLoop& loop, double seconds) {
  loop.announce("limit", fmt::format("the batch system ends this job in {:.0f} s; the run saves "
                                     "and stops before",
                                     seconds));
}

void announce_run(TrainLoop& loop, const RunConfig& options, TrainingRun& run, RunData& data,
                  const std::optional<ResumePoint>& point) {
  const char* event = point ? "resume" : "start";
  if (point) {
    announce_resume(loop, options, *point);
  } else if (const std::string random = random_weights_text(options); !random.empty()) {
    loop.announce(event, random);
  }
  const auto announce = [&](const std::string& text) {
    if (!text.empty()) {
      loop.announce(event, text);
    }
  };
  announce_lost_hosts(loop);
  announce(save_text(options));
  announce(precision_text(options));
  announce(run.comm().rank() == 0 ? export_text(options) : std::string());
  if (options.monitor.trace && point) {
    announce(trace_text(*options.monitor.trace, point->info.step));
  }
  for (const std::string& idle : idle_options(options, run.comm().world_size())) {
    loop.announce(event, idle);
  }
  if (const std::string objective = objective_text(run.settings().scratch.loss.terms);
      !objective.empty()) {
    loop.announce(event,
                  fmt::format("the loss of a step is the training objective: {}; evaluations give "
                              "the cross entropy alone",
                              objective));
  }
  announce_data(loop, event, options, data,
                point ? WorkDone{point->info.step, point->info.windows_taken} : WorkDone{});
}

}  // namespace tessera
