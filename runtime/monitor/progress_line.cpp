#include "runtime/monitor/progress_line.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "kernels/base/quantity.h"
#include "kernels/base/terminal.h"

namespace tessera {
namespace {

constexpr std::string_view kGap = "  ";

struct Part {
  std::string text;
  int rank;  // of importance: 0 goes last
  std::string_view colour;
};

std::size_t length_of(const std::vector<Part>& parts) {
  std::size_t length = 0;
  for (const Part& part : parts) {
    length += (length == 0 ? 0 : kGap.size()) + part.text.size();
  }
  return length;
}

// A norm above --clip is not the one of what is applied.
std::string norm_text(double value, double clip) {
  return fmt::format("norm {:.3f}{}", value, clip > 0 && value > clip ? " before clipping" : "");
}

}  // namespace

std::string progress_text(const StepReport& report, const ProgressFacts& facts, std::size_t width,
                          Colours colours) {
  enum : int {
    step,
    warning,
    skipped,
    loss,
    time_left,
    eval_loss,
    skips,
    rate,
    memory,
    norm,
    learning_rate
  };
  std::vector<Part> parts = {
      {fmt::format("step {}/{}", report.step, facts.steps), step, {}},
      {report.targets == 0
           ? "no targets"
           : fmt::format("{} {:.4f}", facts.has_loss_terms ? "objective" : "loss", report.loss),
       loss,
       {}},
      {norm_text(report.grad_norm, facts.clip), norm, {}},
      {fmt::format("lr {:.2e}", report.lr), learning_rate, {}},
      {fmt::format("{:.0f} tok/s", facts.tokens_per_second), rate, {}}};
  if (facts.eval_loss) {
    parts.insert(parts.begin() + 2, {fmt::format("eval {:.4f}", *facts.eval_loss), eval_loss, {}});
  }
  if (facts.memory_bytes > 0) {
    parts.push_back({fmt::format("memory {}", format_bytes(facts.memory_bytes)), memory, {}});
  }
  parts.push_back({fmt::format("{} left", format_duration(facts.seconds_left)), time_left, {}});
  if (report.skipped) {
    parts.push_back({"SKIPPED: not finite", skipped, kRed});
  }
  if (facts.skipped_in_all > 0) {
    parts.push_back({fmt::format("({} skipped)", facts.skipped_in_all), skips, kYellow});
  }
  if (!facts.warning.empty()) {
    parts.push_back({fmt::format("! {}", facts.warning), warning, kYellow});
  }
  while (width > 0 && parts.size() > 1 && length_of(parts) > width) {
    parts.erase(std::max_element(parts.begin(), parts.end(),
                                 [](const Part& a, const Part& b) { return a.rank < b.rank; }));
  }
  std::string line;
  for (const Part& part : parts) {
    line += line.empty() ? "" : kGap;
    const std::string text = fitted(part.text, width == 0 ? part.text.size() : width);
    line += colours == Colours::on && !part.colour.empty()
                ? fmt::format("{}{}{}", part.colour, text, kNormal)
                : text;
  }
  return line;
}

}  // namespace tessera
