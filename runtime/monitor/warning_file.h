// Warnings and errors of every rank in OUT/warnings.jsonl, for `report` and for whoever comes
// later: stderr of a job is often lost. Described in runtime/monitor/metrics.md.
#pragma once

#include <filesystem>
#include <string>

namespace tessera {

/// From now on each warning and error of this process (kernels/base/log.h) is remembered, up to
/// 1000 of them, for `keep_warnings`: a run that does not start leaves the folder as it was.
void hold_warnings(int rank, const std::string& host);
/// Says so in a warning where OUT/warnings.jsonl is there and cannot be written. Changes nothing.
void look_at_warning_file(const std::filesystem::path& out);
/// The run has started: each of them, and of those that follow, is a line of OUT/warnings.jsonl,
/// which is made with the first. A file that cannot be written is passed over: the message was
/// reported on stderr. Requires: hold_warnings.
void keep_warnings(const std::filesystem::path& out);

}  // namespace tessera
