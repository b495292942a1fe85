#include "kernels/base/host_memory.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <sys/resource.h>

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kKib = 1024;
constexpr double kGiga = 1e9;

// The number in a file that holds nothing else; none for "max", or where there is no such file.
std::optional<std::size_t> number_in(const fs::path& file) {
  std::ifstream in(file);
  std::size_t number = 0;
  return in >> number ? std::optional(number) : std::nullopt;
}

// Sum of the values of `keys` in a file of "key value" lines.
std::size_t sum_in(const fs::path& file, std::initializer_list<std::string_view> keys) {
  std::ifstream in(file);
  std::size_t sum = 0;
  std::string key;
  std::size_t value = 0;
  while (in >> key >> value) {
    sum += std::find(keys.begin(), keys.end(), key) != keys.end() ? value : 0;
  }
  return sum;
}

// How one version of control groups names its files.
struct GroupFiles {
  const char* limit;
  const char* used;
  const char* active;
  const char* inactive;
};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                  "total_active_file", "total_inactive_file"};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "active_file", "inactive_file"};
// Version 1 writes the largest multiple of a page for "no limit".
constexpr std::size_t kUnlimited1 = std::size_t{1} << 62U;

// The group and those above it, up to `mount`: each may have a limit. A container sees its own
// group as the mount, while /proc may name it by its path outside.
void look_at_groups(const fs::path& mount, const fs::path& group, const GroupFiles& files,
                    HostMemory& memory) {
  fs::path folder = mount / group.relative_path();
  std::error_code ignored;
  if (!fs::exists(folder, ignored)) {
    folder = mount;
  }
  while (true) {
    const std::size_t limit = number_in(folder / files.limit).value_or(kNoLimit);
    if (limit < kUnlimited1) {
      const std::size_t used = number_in(folder / files.used).value_or(0);
      const std::size_t cache = sum_in(folder / "memory.stat", {files.active, files.inactive});
      const std::size_t taken = std::min(limit, used - std::min(used, cache));
      const bool least = memory.cgroup_limit_bytes == kNoLimit ||
                         limit - taken < memory.cgroup_limit_bytes - memory.cgroup_used_bytes;
      if (least) {
        memory.cgroup_limit_bytes = limit;
        memory.cgroup_used_bytes = taken;
      }
    }
    if (folder == mount || !folder.has_parent_path() || folder == folder.parent_path()) {
      return;
    }
    folder = folder.parent_path();
  }
}

// Lines of /proc like "MemTotal:   24032132 kB".
template <typename Take>
void for_each_size(const fs::path& file, const Take& take) {
  std::ifstream in(file);
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string key;
    std::size_t kib = 0;
    if (words >> key >> kib) {
      take(key, kib * kKib);
    }
  }
}

void look_at_cgroups(const fs::path& root, HostMemory& memory) {
  const fs::path mount = root / "sys/fs/cgroup";
  std::ifstream in(root / "proc/self/cgroup");
  std::string line;
  bool found = false;
  while (std::getline(in, line)) {  // "4:memory:/path", or "0::/path" in version 2
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    std::string controllers(1, ',');
    controllers.append(line, first + 1, second - first - 1).push_back(',');
    const fs::path group = line.substr(second + 1);
    if (controllers == ",,") {
      look_at_groups(mount, group, kVersion2, memory);
      found = true;
    } else if (controllers.find(",memory,") != std::string::npos) {
      look_at_groups(mount / "memory", group, kVersion1, memory);
      found = true;
    }
  }
  if (!found) {
    look_at_groups(mount, "", kVersion2, memory);
    look_at_groups(mount / "memory", "", kVersion1, memory);
  }
}

}  // namespace

std::size_t HostMemory::limit_bytes() const noexcept {
  return std::min(total_bytes, cgroup_limit_bytes);
}

std::size_t HostMemory::room_bytes() const noexcept {
  const std::size_t group =
      cgroup_limit_bytes == kNoLimit ? kNoLimit : cgroup_limit_bytes - cgroup_used_bytes;
  return std::min(available_bytes, group);
}

std::string HostMemory::text() const {
  const auto giga = [](std::size_t bytes) {
    return fmt::format("{:.1f} GB", static_cast<double>(bytes) / kGiga);
  };
  std::string out =
      fmt::format("machine {} of which {} available", giga(total_bytes), giga(available_bytes));
  out += cgroup_limit_bytes == kNoLimit
             ? ", no limit of a control group"
             : fmt::format(", control group's limit {} of which {} used", giga(cgroup_limit_bytes),
                           giga(cgroup_used_bytes));
  out += locked_limit_bytes == kNoLimit
             ? ", locked memory (ulimit -l) unlimited"
             : fmt::format(", locked memory (ulimit -l) {}", giga(locked_limit_bytes));
  return out;
}

ResidentMemory resident_memory(const fs::path& root) {
  ResidentMemory memory;
  for_each_size(root / "proc/self/status", [&](const std::string& key, std::size_t bytes) {
    if (key == "VmRSS:") {
      memory.bytes = bytes;
    } else if (key == "VmHWM:") {
      memory.peak_bytes = bytes;
    }
  });
  return memory;
}

bool restart_peak_of_resident_memory() {
  std::ofstream out("/proc/self/clear_refs");  // man 5 proc: 5 resets VmHWM
  out << "5";
  out.close();
  return out.good();
}

HostMemory host_memory(const fs::path& root) {
  HostMemory memory;
  for_each_size(root / "proc/meminfo", [&](const std::string& key, std::size_t bytes) {
    if (key == "MemTotal:") {
      memory.total_bytes = bytes;
    } else if (key == "MemAvailable:") {
      memory.available_bytes = bytes;
    }
  });
  look_at_cgroups(root, memory);
  rlimit locked{};
  if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY) {
    memory.locked_limit_bytes = locked.rlim_cur;
  }
  return memory;
}

std::vector<int> parse_processors(std::string_view text) {
  std::vector<int> processors;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    int first = 0;
    const auto [after, error] = std::from_chars(at, end, first);
    if (error != std::errc() || first < 0) {
      break;
    }
    int last = first;
    at = after;
    if (at < end && *at == '-') {
      const auto [after_last, range_error] = std::from_chars(at + 1, end, last);
      if (range_error != std::errc()) {
        break;
      }
      at = after_last;
    }
    constexpr int kMost = 1 << 16;
    for (int i = first; i <= last && i < kMost; ++i) {
      processors.push_back(i);
    }
    if (at >= end || *at != ',') {
      break;
    }
    ++at;
  }
  return processors;
}

std::vector<int> processors_near(std::string_view bus_id, const fs::path& root) {
  std::string name(bus_id);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::ifstream in(root / "sys/bus/pci/devices" / name / "numa_node");
  int node = -1;
  if (!(in >> node) || node < 0) {
    return {};
  }
  std::ifstream list(root / "sys/devices/system/node" / fmt::format("node{}", node) / "cpulist");
  std::string text;
  std::getline(list, text);
  return parse_processors(text);
}

}  // namespace tessera
