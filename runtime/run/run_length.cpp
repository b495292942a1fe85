#include "runtime/run/run_length.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/quantity.h"
#include "kernels/base/round_up.h"

namespace tessera {
namespace {

constexpr double kRounding = 2 * std::numeric_limits<double>::epsilon();

// ceil(epochs * sequences): what is a whole number but for the rounding of `epochs` and of the
// product is that number, so that 0.1 of 30 sequences is 3.
double sequences_of(double epochs, Index sequences) {
  const double product = epochs * static_cast<double>(sequences);
  const double nearest = std::round(product);
  return std::abs(product - nearest) <= kRounding * product ? nearest : std::ceil(product);
}

// Positions of the data order that a run takes at least.
Index wanted_sequences(const RunConfig& c, Index pass_sequences) {
  if (c.length.tokens) {
    return divide_up(*c.length.tokens, c.batch.seq);
  }
  constexpr double kMost = 0x1p62;
  const double wanted = sequences_of(*c.length.epochs, pass_sequences);
  if (wanted > kMost) {
    throw ConfigError(fmt::format("--epochs {} of {} are too many; give fewer", *c.length.epochs,
                                  counted(pass_sequences, "sequence")),
                      TESSERA_HERE);
  }
  return static_cast<Index>(wanted);
}

// "--epochs 2", "--tokens 5000", "--steps 20".
std::string option_text(const RunConfig& c) {
  return c.length.epochs   ? fmt::format("--epochs {}", *c.length.epochs)
         : c.length.tokens ? fmt::format("--tokens {}", *c.length.tokens)
                           : fmt::format("--steps {}", c.steps);
}

// "2.25 passes", "1 pass".
std::string passes_text(double passes) {
  constexpr double kMany = 100;
  const std::string number =
      passes >= kMany ? grouped(std::llround(passes)) : fmt::format("{:.3g}", passes);
  return fmt::format("{} {}", number, number == "1" ? "pass" : "passes");
}

// Sequences that all steps of the run take.
Index sequences_in_all(const RunConfig& c, const WorkDone& done) {
  const Index batch = c.batch.global_batch;
  return c.steps >= done.step ? done.sequences + (c.steps - done.step) * batch : c.steps * batch;
}

}  // namespace

RunConfig with_steps(RunConfig c, Index pass_sequences, const WorkDone& done) {
  if (!c.length.epochs && !c.length.tokens) {
    return c;
  }
  if (c.length.epochs && pass_sequences == 0) {
    c.steps = 0;
    return c;
  }
  const Index wanted = wanted_sequences(c, pass_sequences);
  const Index batch = c.batch.global_batch;
  // the last step may have taken more than was asked for
  c.steps = wanted > done.sequences - batch
                ? done.step + divide_up(std::max<Index>(wanted - done.sequences, 0), batch)
                : std::min(done.step, divide_up(wanted, batch));
  if (c.steps > kMostSteps) {
    throw ConfigError(fmt::format("{} is {} steps, more than {}; give fewer", option_text(c),
                                  c.steps, kMostSteps),
                      TESSERA_HERE);
  }
  set_text(c, "steps", std::to_string(c.steps));
  return c;
}

std::string length_text(const RunConfig& c) {
  return c.length.epochs || c.length.tokens
             ? fmt::format("{} ({})", option_text(c),
                           c.steps == 0 ? "steps by the data" : counted(c.steps, "step"))
             : option_text(c);
}

std::string length_change(const RunConfig& before, const RunConfig& now) {
  const std::string option = option_text(now);
  if (option == option_text(before)) {
    return fmt::format("{} was {} and is {}", option, counted(before.steps, "step"), now.steps);
  }
  const std::string name = option.substr(0, option.find(' '));
  const std::string was = length_text(before);
  return was.starts_with(name + " ")
             ? fmt::format("{} was {} and is {}", name, was.substr(name.size() + 1),
                           length_text(now).substr(name.size() + 1))
             : fmt::format("the length was {} and is {}", was, length_text(now));
}

std::string run_passes_text(const RunConfig& c, const DataPass& pass, const WorkDone& done) {
  return passes_text(static_cast<double>(sequences_in_all(c, done)) /
                     static_cast<double>(pass.sequences));
}

std::string pass_text(const RunConfig& c, const DataPass& pass, const WorkDone& done) {
  const Index batch = c.batch.global_batch;
  const Index taken = sequences_in_all(c, done);
  const auto rounded = [](bool is_rounded) { return is_rounded ? ", rounded up" : ""; };
  const std::string text = fmt::format(
      "one pass over the data is {}{}: {} with {} tokens; {} is ",
      counted(divide_up(pass.sequences, batch), "step"), rounded(pass.sequences % batch != 0),
      counted(pass.sequences, "sequence"), grouped(pass.tokens), option_text(c));
  const auto sequences = static_cast<double>(pass.sequences);
  if (c.length.epochs) {
    const double wanted = *c.length.epochs * sequences * (1 + kRounding);
    return text + counted(c.steps, "step") + rounded(static_cast<double>(taken) > wanted);
  }
  const std::string passes = run_passes_text(c, pass, done);
  return c.length.tokens ? fmt::format("{}{}{}, {}", text, counted(c.steps, "step"),
                                       rounded(taken * c.batch.seq > *c.length.tokens), passes)
                         : text + passes;
}

}  // namespace tessera
