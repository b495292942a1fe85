// Warnings and errors of every rank in OUT/warnings.jsonl, for `report` and for whoever comes
// later: stderr of a job is often lost. Described in runtime/monitor/metrics.md.
#pragma once

#include <filesystem>
#include <string>

namespace tessera {

/// From now on each warning and error of this process (kernels/base/log.h) is also a line of
/// OUT/warnings.jsonl, which is made with the first. A file that cannot be written is passed over:
/// the message was said on stderr.
void keep_warnings(const std::filesystem::path& out, int rank, const std::string& host);

}  // namespace tessera
