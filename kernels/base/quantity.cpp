#include "kernels/base/quantity.h"

#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "kernels/base/error.h"

namespace tessera {
namespace {

struct Suffix {
  std::string_view text;
  double factor;
};

// Listed for users by parse_bytes.
constexpr std::array kSuffixes = {
    Suffix{"", 1},         Suffix{"B", 1},        Suffix{"kB", 1e3},     Suffix{"KB", 1e3},
    Suffix{"MB", 1e6},     Suffix{"GB", 1e9},     Suffix{"TB", 1e12},    Suffix{"KiB", 0x1p10},
    Suffix{"MiB", 0x1p20}, Suffix{"GiB", 0x1p30}, Suffix{"TiB", 0x1p40}, Suffix{"PiB", 0x1p50},
};

[[noreturn]] void refuse(std::string_view what, std::string_view text, const std::string& wanted) {
  throw ConfigError(fmt::format("{} '{}' is not {}", what, text, wanted), TESSERA_HERE);
}

}  // namespace

std::size_t parse_bytes(std::string_view text, SizeRange range, std::string_view what) {
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view suffix = text.substr(static_cast<std::size_t>(rest - text.data()));
  if (error == std::errc{} && number >= 0) {
    for (const Suffix& each : kSuffixes) {
      const double bytes = number * each.factor;
      if (suffix == each.text && bytes < 0x1p62) {
        const auto whole = static_cast<std::size_t>(bytes);
        if (whole >= range.least && whole <= range.most) {
          return whole;
        }
      }
    }
  }
  refuse(
      what, text,
      fmt::format("a size in bytes from {}: give a number and B, kB, MB, GB, TB (powers of 1000) "
                  "or KiB, MiB, GiB, TiB, PiB (powers of 1024), such as 64MiB or 5GB",
                  range_text(range)));
}

Index parse_count(std::string_view text, CountRange range, std::string_view what) {
  Index number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || rest != text.data() + text.size() || number < range.least ||
      number > range.most) {
    refuse(what, text, fmt::format("a whole number from {}", range_text(range)));
  }
  return number;
}

double parse_real(std::string_view text, RealRange range, std::string_view what) {
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc{} && rest == text.data() + text.size();
  if (!whole || !(number >= range.least) || !(number <= range.most) || std::isinf(number)) {
    refuse(what, text, fmt::format("a number from {}", range_text(range)));
  }
  return number;
}

std::string range_text(CountRange range) {
  return fmt::format("{} to {}", range.least, range.most);
}

std::string range_text(SizeRange range) {
  // of 1024 where they are whole ones, as such bounds are
  const auto text = [](std::size_t bytes) {
    constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    constexpr std::size_t kStep = 1024;
    std::size_t unit = 0;
    while (bytes >= kStep && bytes % kStep == 0 && unit + 1 < kUnits.size()) {
      bytes /= kStep;
      ++unit;
    }
    return unit == 0 ? fmt::format("{}", bytes) : fmt::format("{}{}", bytes, kUnits.at(unit));
  };
  return fmt::format("{} to {}", text(range.least), text(range.most));
}

std::string range_text(RealRange range) {
  return fmt::format("{} to {}", range.least, range.most);
}

std::string format_bytes(std::size_t bytes) {
  constexpr std::array kUnits = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1000 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits.at(unit));
}

std::string counted(Index count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string grouped(Index value) {
  constexpr std::size_t kGroup = 3;
  std::string digits = fmt::format("{}", value);
  for (std::size_t at = digits.size(); at > kGroup; at -= kGroup) {
    digits.insert(at - kGroup, 1, ',');
  }
  return digits;
}

std::string part_text(Index part, Index whole, std::string_view noun) {
  return fmt::format("{} of {} {}{}", grouped(part), grouped(whole), noun, whole == 1 ? "" : "s");
}

std::string format_duration(double seconds) {
  if (!(seconds < 1e9)) {
    return "unknown";
  }
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 60) {
    return fmt::format("{}s", whole);
  }
  if (whole < 3600) {
    return fmt::format("{}m{:02d}s", whole / 60, whole % 60);
  }
  return fmt::format("{}h{:02d}m", whole / 3600, whole / 60 % 60);
}

}  // namespace tessera
