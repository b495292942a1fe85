// One step of OUT/trace.json (runtime/monitor/step_trace.h; Google's Trace Event Format), as the
// page draws it: ranks, their lanes, and the ranges of each lane.
#pragma once

#include <filesystem>
#include <optional>

#include <nlohmann/json.hpp>

namespace tessera::report {

/// {"step", "first", "last" (traced steps), "duration" (microseconds), "categories": [name, ...],
///  "names": [name, ...], "ranks_left_out",
///  "ranks": [{"rank", "lanes": [{"name", "ranges": [[begin, duration, category, name, depth],
///  ...]}]}]}: times in microseconds from the step's begin, category and name by number, depth 0
/// for a range that is within no other of its lane. Neighbours of one kind that are too short to
/// see are drawn as one. `wanted` 0: the last traced step. Throws ConfigError for a step that was
/// not traced, FormatError for a file that is not such a trace.
[[nodiscard]] nlohmann::json read_timeline(const std::filesystem::path& file, std::int64_t wanted);

}  // namespace tessera::report
