// The options that a checkpoint stores, and how those of a run that continues it differ.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/run/config.h"

namespace tessera {

/// Names and texts of options, as a checkpoint stores them: what `effective` was.
using StoredOptions = std::map<std::string, std::string, std::less<>>;
/// The options of a run that stored these; what is not there, or cannot be read, has its default.
[[nodiscard]] RunConfig stored_config(const StoredOptions& stored);

/// An option of the effective configuration that has another value than a stored one.
struct OptionChange {
  std::string name;
  std::string before;  // as text; "auto (20)" says what auto came to
  std::string now;
  bool is_stored = true;  // if not, `before` is the default
};
/// Compared by value, not by text: 128MiB is 134217728, and auto what it comes to.
[[nodiscard]] std::vector<OptionChange> changed_options(const StoredOptions& stored,
                                                        const RunConfig& now);

}  // namespace tessera
