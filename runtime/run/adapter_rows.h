// The rows of the table of options that say which adapters a run trains (--lora). For
// option_table.cpp.
#pragma once

#include <string>
#include <vector>

#include "runtime/run/option_table.h"

namespace tessera {

/// `rows` with those of adapters behind the last row of `group`, which they join.
[[nodiscard]] std::vector<OptionRow> with_adapter_rows(std::vector<OptionRow> rows,
                                                       const std::string& group);

}  // namespace tessera
