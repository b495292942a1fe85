#include "runtime/plan/resident_params.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tessera {
namespace {

// "block.0 to block.5"; the units are neighbours.
std::string range_text(const std::vector<std::string>& units) {
  return units.size() == 1 ? units.front() : fmt::format("{} to {}", units.front(), units.back());
}

class NameList {
 public:
  // A unit that is resident as a whole; blocks join those before.
  void add_unit(const ParamUnit& unit) {
    if (!unit.name.starts_with("block.")) {
      add(unit.name);
      return;
    }
    blocks_.push_back(unit.name);
  }
  void add(const std::string& name) {
    end_blocks();
    names_.push_back(name);
  }
  [[nodiscard]] std::string text() {
    end_blocks();
    return fmt::format("{}", fmt::join(names_, ", "));
  }
  void end_blocks() {
    if (!blocks_.empty()) {
      names_.push_back(range_text(blocks_));
      blocks_.clear();
    }
  }

 private:
  std::vector<std::string> names_;
  std::vector<std::string> blocks_;  // resident as a whole, one behind the other
};

}  // namespace

ResidentParams resident_params(const ShardState& shard) {
  ResidentParams result;
  NameList names;
  for (const ParamUnit& unit : shard.layout().units()) {
    std::vector<std::string> resident;
    Index stored = 0;
    for (const ParamTensor& tensor : unit.tensors) {
      stored += shard.stores(tensor) ? 1 : 0;
      if (shard.is_resident(tensor)) {
        resident.push_back(tensor.name);
      }
    }
    result.stored += stored;
    if (stored > 0 && std::ssize(resident) == stored) {
      names.add_unit(unit);
      continue;
    }
    names.end_blocks();
    std::for_each(resident.begin(), resident.end(), [&](const auto& name) { names.add(name); });
  }
  result.count = shard.resident_count();
  result.names = result.count == 0 ? "none" : result.count == result.stored ? "all" : names.text();
  return result;
}

}  // namespace tessera
