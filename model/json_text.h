// JSON texts as files hold them: a text is JSON from its first byte to its last. nlohmann's parser
// alone takes a NUL for the end, and would pass over whatever follows it; its dump throws at names
// of files, which need not be UTF-8.
#pragma once

#include <string>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/escaped_text.h"
#include "kernels/base/input_file.h"

namespace tessera {

namespace detail {

[[noreturn]] inline void refuse_json(std::string_view text, std::string_view source,
                                     const std::string& reason) {
  const std::string_view foreign = foreign_content(text.substr(0, kForeignBytes));
  throw FormatError(foreign.empty() ? fmt::format("{} is not JSON: {}", source, reason)
                                    : fmt::format("{} is {}", source, foreign),
                    TESSERA_HERE);
}

}  // namespace detail

/// The value that `text` is. Throws FormatError that begins with `source`: not JSON, or bytes
/// after its end.
[[nodiscard]] inline nlohmann::json parse_json(std::string_view text, std::string_view source) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    detail::refuse_json(text, source, "it is empty");
  }
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    detail::refuse_json(text, source, fmt::format("byte {} is a NUL", nul));
  }
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    const bool goes_on = std::string_view(error.what()).ends_with("expected end of input");
    detail::refuse_json(text, source,
                        fmt::format("{} at byte {}",
                                    goes_on ? "its JSON text ends, and more text follows"
                                            : "something is missing or does not belong",
                                    error.byte));
  } catch (const nlohmann::json::exception& error) {  // a number beyond every range
    detail::refuse_json(text, source, error.what());
  }
}

/// The same for lines that may be damaged: discarded (is_discarded()) instead of refused.
[[nodiscard]] inline nlohmann::json parse_json_line(std::string_view text) {
  return text.find('\0') == std::string_view::npos
             ? nlohmann::json::parse(text, nullptr, false)
             : nlohmann::json(nlohmann::json::value_t::discarded);
}

/// `json` (nlohmann's, either order of keys) with `edit` done to every string, keys included.
template <typename Json, typename Edit>
[[nodiscard]] Json with_edited_strings(const Json& json, const Edit& edit) {
  if (json.is_string()) {
    return edit(json.template get_ref<const std::string&>());
  }
  if (!json.is_structured()) {
    return json;
  }
  Json out = json.is_object() ? Json::object() : Json::array();
  for (const auto& [key, value] : json.items()) {
    if (json.is_object()) {
      out[edit(key)] = with_edited_strings(value, edit);
    } else {
      out.push_back(with_edited_strings(value, edit));
    }
  }
  return out;
}

/// Text that is read again: strings by escaped_text (escaped_text.h), from which unescaped_text
/// gives the bytes back. `indent` below 0: one line.
template <typename Json>
[[nodiscard]] std::string json_text(const Json& json, int indent = -1) {
  return with_edited_strings(json, escaped_text).dump(indent);
}

/// Text of a report: strings by shown_text, so that what has been escaped is not escaped again.
template <typename Json>
[[nodiscard]] std::string shown_json(const Json& json, int indent = -1) {
  return with_edited_strings(json, shown_text).dump(indent);
}

}  // namespace tessera
