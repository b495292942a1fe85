#include "jobs/inspect/output.h"

#include <algorithm>
#include <iostream>

#include <fmt/format.h>

#include "model/json_text.h"

namespace tessera::inspect {

void Output::print_document() const {
  std::cout << shown_json(document, 2) << '\n';
}

void TextTable::print() const {
  std::vector<std::size_t> widths(rows_.front().size());
  std::vector<bool> is_number(rows_.front().size(), true);
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
      const bool looks_like_one =
          row[i].empty() || row[i].find_first_not_of("+-.0123456789einfa") == std::string::npos;
      is_number[i] = is_number[i] && (&row == &rows_.front() || looks_like_one);
    }
  }
  for (const auto& row : rows_) {
    std::string line = " ";
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += is_number[i] ? fmt::format(" {:>{}}", row[i], widths[i])
                           : fmt::format(" {:<{}}", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    std::cout << line << '\n';
  }
}

}  // namespace tessera::inspect
