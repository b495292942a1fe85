// What the rows of the table of options are made of: the field that an option sets, and the parser
// of its text. For option_table.cpp.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/base/error.h"
#include "kernels/base/quantity.h"
#include "runtime/run/command_words.h"
#include "runtime/run/option_table.h"

namespace tessera {

/// The field that these members lead to: at(&RunConfig::batch, &BatchConfig::seq).
template <typename... Member>
auto at(Member... members) {
  return [=](auto& config) -> auto& {
    return (config.*....*members);
  };
}

template <typename Access>
using FieldOf =
    std::remove_reference_t<decltype(std::declval<Access>()(std::declval<RunConfig&>()))>;

template <typename T>
struct Word {
  const char* text;
  T value;
};

/// The one way to write a number of this field; empty where it holds none.
template <typename T>
std::string number_text(const T& value) {
  if constexpr (std::is_same_v<T, ResidentBytes>) {
    return value.kind == ResidentKind::bytes ? fmt::format("{}", value.bytes) : std::string();
  } else if constexpr (std::is_same_v<T, GradOffload>) {
    return value.kind == OffloadKind::bytes ? fmt::format("{}", value.bytes) : std::string();
  } else if constexpr (std::is_same_v<T, std::optional<std::int64_t>> ||
                       std::is_same_v<T, std::optional<std::size_t>> ||
                       std::is_same_v<T, std::optional<double>>) {
    return value ? fmt::format("{}", *value) : std::string();
  } else if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
    return fmt::format("{}", value);
  } else {
    return {};
  }
}

/// `access` gives the field, constant or not; `parse` makes its value of text and name.
template <typename Access, typename Parse>
OptionSetting parsed_into(const Access& access, const Parse& parse, const std::string& range = {}) {
  return {
      .set = [=](RunConfig& c, const std::string& text,
                 const std::string& name) { access(c) = parse(text, name); },
      .is_equal = [=](const RunConfig& a, const RunConfig& b) { return access(a) == access(b); },
      .number = [=](const RunConfig& c) { return number_text(access(c)); },
      .range = range};
}

/// Of a parser for what is neither this word nor has its value.
template <typename T, typename Parse>
auto or_word(const char* word, const T& value, const Parse& parse) {
  return [=](const std::string& text, const std::string& name) -> T {
    return text == word ? value : T(parse(text, name));
  };
}

/// Of a parser for what was given: empty text is none, the default.
template <typename Parse>
auto or_none(const Parse& parse) {
  using T = std::optional<std::invoke_result_t<Parse, std::string, std::string>>;
  return [=](const std::string& text, const std::string& name) -> T {
    return text.empty() ? T() : T(parse(text, name));
  };
}

template <typename T>
auto words(std::initializer_list<Word<T>> list) {
  return [all = std::vector<Word<T>>(list)](const std::string& text, const std::string& name) -> T {
    std::vector<std::string> names;
    for (const Word<T>& word : all) {
      if (text == word.text) {
        return word.value;
      }
      names.emplace_back(word.text);
    }
    throw ConfigError(fmt::format("{} '{}': choose {}", name, text, fmt::join(names, ", ")),
                      TESSERA_HERE);
  };
}

inline auto count_in(CountRange range) {
  return [range](const std::string& text, const std::string& name) {
    return parse_count(text, range, name);
  };
}

inline auto bytes_in(SizeRange range) {
  return [range](const std::string& text, const std::string& name) {
    return parse_bytes(text, range, name);
  };
}

inline auto real_in(RealRange range) {
  return [range](const std::string& text, const std::string& name) {
    return parse_real(text, range, name);
  };
}

template <typename Access>
OptionSetting count_into(const Access& access, CountRange range) {
  return parsed_into(
      access,
      [range](const std::string& text, const std::string& name) {
        return static_cast<FieldOf<Access>>(parse_count(text, range, name));
      },
      range_text(range));
}

template <typename Access>
OptionSetting auto_count_into(const Access& access, CountRange range) {
  return parsed_into(access, or_word("auto", std::optional<std::int64_t>(), count_in(range)),
                     range_text(range));
}

template <typename Access>
OptionSetting real_into(const Access& access, RealRange range) {
  return parsed_into(access, real_in(range), range_text(range));
}

template <typename Access>
OptionSetting bytes_into(const Access& access, SizeRange range) {
  return parsed_into(access, bytes_in(range), range_text(range));
}

template <typename Access>
OptionSetting text_into(const Access& access) {
  return parsed_into(access, [](const std::string& text, const std::string&) { return text; });
}

template <typename Access>
OptionSetting flag_into(const Access& access) {
  return parsed_into(access, [](const std::string& text, const std::string& name) {
    return parse_switch(text, name);
  });
}

template <typename T, typename Access>
OptionSetting choice_into(const Access& access, std::initializer_list<Word<T>> list) {
  return parsed_into(access, words(list));
}

/// A switch that chooses between two values.
template <typename T, typename Access>
OptionSetting flag_choice_into(const Access& access, T on, T off) {
  return parsed_into(access, [=](const std::string& text, const std::string& name) {
    return parse_switch(text, name) ? on : off;
  });
}

}  // namespace tessera
