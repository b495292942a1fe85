#include "model/rope_scaling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "kernels/base/error.h"

namespace tessera {
namespace {

struct TypeName {
  RopeType type;
  const char* name;
};
constexpr std::array kTypes = {
    TypeName{RopeType::none, "default"}, TypeName{RopeType::linear, "linear"},
    TypeName{RopeType::dynamic, "dynamic"}, TypeName{RopeType::yarn, "yarn"},
    TypeName{RopeType::llama3, "llama3"}};

// `smooth` 1: as it is; 0: divided by the factor.
double blended(double frequency, double factor, double smooth) {
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

double llama3_frequency(const RopeScaling& s, double frequency) {
  const auto original = static_cast<double>(s.original_max_position);
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double longest = original / s.low_freq_factor;
  const double shortest = original / s.high_freq_factor;
  if (wavelength > longest) {
    return frequency / s.factor;
  }
  return wavelength < shortest ? frequency
                               : blended(frequency, s.factor,
                                         (original / wavelength - s.low_freq_factor) /
                                             (s.high_freq_factor - s.low_freq_factor));
}

// The pair, as a real number, that turns `turns` times over the original positions
// (arXiv:2309.00071, section 3.2).
double pair_that_turns(double turns, const RopeScaling& s, double theta, double head_dim) {
  const auto original = static_cast<double>(s.original_max_position);
  return head_dim * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

// Where the division begins, and where it is whole.
struct Ramp {
  double begin;
  double end;
};

Ramp yarn_ramp(const RopeScaling& s, double theta, Index head_dim) {
  const auto dim = static_cast<double>(head_dim);
  Ramp ramp = {pair_that_turns(s.beta_fast, s, theta, dim),
               pair_that_turns(s.beta_slow, s, theta, dim)};
  if (s.truncate) {
    ramp = {std::floor(ramp.begin), std::ceil(ramp.end)};
  }
  ramp = {std::max(ramp.begin, 0.0), std::min(ramp.end, dim - 1)};
  constexpr double kSmallestRamp = 0.001;
  if (ramp.begin == ramp.end) {
    ramp.end += kSmallestRamp;
  }
  return ramp;
}

double yarn_scale(const RopeScaling& s) {
  const auto scale_of = [&s](double weight) {
    constexpr double kSlope = 0.1;
    return s.factor <= 1 ? 1 : kSlope * weight * std::log(s.factor) + 1;
  };
  if (s.attention_factor) {
    return *s.attention_factor;
  }
  const bool has_both = s.mscale.value_or(0) != 0 && s.mscale_all_dim.value_or(0) != 0;
  return has_both ? scale_of(*s.mscale) / scale_of(*s.mscale_all_dim) : scale_of(1);
}

double dynamic_theta(const RopeScaling& s, double theta, Index head_dim, Index max_position,
                     Index length) {
  const auto dim = static_cast<double>(head_dim);
  const double stretch =
      static_cast<double>(std::max(length, max_position)) / static_cast<double>(max_position);
  return theta * std::pow(s.factor * stretch - (s.factor - 1), dim / (dim - 2));
}

}  // namespace

const char* rope_type_name(RopeType type) noexcept {
  return std::find_if(kTypes.begin(), kTypes.end(),
                      [type](const TypeName& each) { return each.type == type; })
      ->name;
}

std::optional<RopeType> find_rope_type(std::string_view name) noexcept {
  const auto* const found = std::find_if(
      kTypes.begin(), kTypes.end(), [name](const TypeName& each) { return each.name == name; });
  return found == kTypes.end() ? std::nullopt : std::optional(found->type);
}

void check(const RopeScaling& s) {
  const auto require = [&s](bool holds, std::string_view what) {
    if (!holds) {
      throw ConfigError(fmt::format("{} rope scaling needs {}", rope_type_name(s.type), what),
                        TESSERA_HERE);
    }
  };
  const auto is_positive = [](double value) { return value > 0 && std::isfinite(value); };
  require(is_positive(s.factor), fmt::format("a factor above 0, not {}", s.factor));
  require(s.type != RopeType::dynamic || s.factor >= 1,
          fmt::format("a factor of at least 1, not {}", s.factor));
  require(s.low_freq_factor > 0 && s.high_freq_factor > s.low_freq_factor &&
              s.original_max_position >= 1,
          "0 < low_freq_factor < high_freq_factor and original_max_position_embeddings of at least "
          "1");
  require(s.beta_slow > 0 && s.beta_fast > s.beta_slow, "0 < beta_slow < beta_fast");
  for (const std::optional<double>& value : {s.attention_factor, s.mscale, s.mscale_all_dim}) {
    require(!value || (*value >= 0 && std::isfinite(*value)),
            "attention_factor, mscale and mscale_all_dim of at least 0");
  }
  require(s.type != RopeType::yarn || is_positive(yarn_scale(s)),
          "a scale of queries and keys above 0");
}

RotaryFrequencies rotary_frequencies(const RopeScaling& scaling, double theta, Index head_dim,
                                     Index max_position, Index length) {
  const bool is_yarn = scaling.type == RopeType::yarn;
  const Ramp ramp = is_yarn ? yarn_ramp(scaling, theta, head_dim) : Ramp{};
  const double base = scaling.type == RopeType::dynamic
                          ? dynamic_theta(scaling, theta, head_dim, max_position, length)
                          : theta;
  RotaryFrequencies frequencies;
  frequencies.scale = is_yarn ? yarn_scale(scaling) : 1;
  for (Index i = 0; i < head_dim / 2; ++i) {
    const double plain =
        std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    double radians = plain;
    if (scaling.type == RopeType::linear) {
      radians = plain / scaling.factor;
    } else if (scaling.type == RopeType::llama3) {
      radians = llama3_frequency(scaling, plain);
    } else if (is_yarn) {
      const double done =
          std::clamp((static_cast<double>(i) - ramp.begin) / (ramp.end - ramp.begin), 0.0, 1.0);
      radians = blended(plain, scaling.factor, 1 - done);
    }
    frequencies.radians.push_back(radians);
  }
  return frequencies;
}

}  // namespace tessera
