// The page of `report`: one HTML file with its style, its script and the runs' numbers inside,
// which loads nothing from anywhere.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "jobs/report/metrics_file.h"

namespace tessera::report {

/// A run, and what the page shows of it beside metrics.jsonl.
struct PageRun {
  RunRecord record;
  nlohmann::json timeline;           // of read_timeline, or null
  double gemm_flops_per_second = 0;  // of one rank's GEMMs; 0: what its starts measured
};

/// `text` where HTML stands: `&`, `<`, `>`, `"` and `'` as entities.
[[nodiscard]] std::string html_text(std::string_view text);
/// JSON that may stand in a `<script>` element: no `<`, `>` or `&` is left, and what is not UTF-8 is
/// replaced.
[[nodiscard]] std::string script_json(const nlohmann::json& value);

/// Whether a file that begins with these bytes (kPageStartBytes of them, or all) is such a page.
[[nodiscard]] bool is_page_start(std::string_view first_bytes) noexcept;
inline constexpr std::size_t kPageStartBytes = 1024;

struct PageOptions {
  std::string_view tool;     // program and version
  std::string_view made;     // when
  double renew_seconds = 0;  // after which the browser reads the page's file again; 0: never
};
[[nodiscard]] std::string html_page(const std::vector<PageRun>& runs, const PageOptions& options);

}  // namespace tessera::report
