// JSON as Python's json.dumps(value, ensure_ascii=False) writes it, which chat templates put into
// the text of a model's tools (their filter `tojson`).
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

namespace tessera {

/// `indent`: blanks a level, each value on a line of its own; without it all is on one line.
[[nodiscard]] std::string python_json(const nlohmann::ordered_json& value,
                                      std::optional<std::size_t> indent = std::nullopt);

}  // namespace tessera
