// Where what inspect finds goes: text as it is found, or one JSON document at the end.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "jobs/progress_bar.h"

namespace tessera::inspect {

using Json = nlohmann::ordered_json;

struct Output {
  bool is_json = false;
  Json document = Json::object();
  int status = 0;  // of the program
  [[nodiscard]] bool is_text() const { return !is_json; }
  void print_document() const;
};

/// Columns as wide as their longest entry; numbers to the right.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> titles) { rows_.push_back(std::move(titles)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void print() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// Does something long, whose progress shows until it returns.
template <typename Work>
auto with_progress(std::string_view what, Work work) {
  ProgressBar bar(what);
  return work([&bar](std::uint64_t done, std::uint64_t total) {
    bar.update(static_cast<std::int64_t>(done), static_cast<std::int64_t>(total));
  });
}

}  // namespace tessera::inspect
