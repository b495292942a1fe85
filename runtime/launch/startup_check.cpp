#include "runtime/launch/startup_check.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <fstream>
#include <memory>
#include <random>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "collectives/mpi_control.h"
#include "collectives/mpi_session.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/base/hash.h"
#include "kernels/base/progress.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/launch/agree.h"
#include "runtime/launch/rank_table.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kRetryInterval{200};

// Values as one text: names and values with their lengths before them, so that any characters may
// be in them.
std::string encode(std::span<const NamedValue> values) {
  std::string text;
  for (const NamedValue& value : values) {
    text +=
        fmt::format("{} {} {}{}", value.name.size(), value.value.size(), value.name, value.value);
  }
  return text;
}

std::size_t take_number(std::string_view& text) {
  const std::size_t space = text.find(' ');
  TESSERA_REQUIRE(space != std::string_view::npos, "a rank's list of values");
  const std::size_t number = std::stoul(std::string(text.substr(0, space)));
  text.remove_prefix(space + 1);
  return number;
}

std::string take_text(std::string_view& text, std::size_t length) {
  TESSERA_REQUIRE(length <= text.size(), "a rank's list of values");
  std::string taken(text.substr(0, length));
  text.remove_prefix(length);
  return taken;
}

std::vector<NamedValue> decode(std::string_view text) {
  std::vector<NamedValue> values;
  while (!text.empty()) {
    const std::size_t name_length = take_number(text);
    const std::size_t value_length = take_number(text);
    std::string name = take_text(text, name_length);
    values.push_back({std::move(name), take_text(text, value_length)});
  }
  return values;
}

// The value of this name; null if there is none.
const std::string* find(const std::vector<NamedValue>& values, const std::string& name) {
  const auto found = std::find_if(values.begin(), values.end(),
                                  [&](const NamedValue& value) { return value.name == name; });
  return found == values.end() ? nullptr : &found->value;
}

// At most kMostShown bytes of a long value, with the place where it differs from `other` in them.
std::string excerpt(const std::string& value, const std::string& other) {
  constexpr std::size_t kMostShown = 160;
  constexpr std::size_t kBefore = 40;
  if (value.size() <= kMostShown) {
    return value;
  }
  const auto differs =
      std::mismatch(value.begin(), value.end(), other.begin(), other.end()).first - value.begin();
  const std::size_t begin =
      static_cast<std::size_t>(differs) > kBefore ? static_cast<std::size_t>(differs) - kBefore : 0;
  return fmt::format("{}{}{}", begin > 0 ? "..." : "", value.substr(begin, kMostShown),
                     begin + kMostShown < value.size() ? "..." : "");
}

// "lr = 1e-4", or that there is none.
std::string shown(const std::string& name, const std::string* value, const std::string* other) {
  return value == nullptr
             ? fmt::format("no {}", name)
             : fmt::format("{} = {}", name, excerpt(*value, other == nullptr ? "" : *other));
}

bool is_same(const std::string* a, const std::string* b) {
  return a == nullptr || b == nullptr ? a == b : *a == *b;
}

// Names whose values differ, in a's order, then b's. None: the order alone differs.
std::vector<std::string> differences(const std::vector<NamedValue>& a,
                                     const std::vector<NamedValue>& b) {
  std::vector<std::string> names;
  for (const std::vector<NamedValue>* list : {&a, &b}) {
    for (const NamedValue& value : *list) {
      if (!is_same(find(a, value.name), find(b, value.name)) &&
          std::find(names.begin(), names.end(), value.name) == names.end()) {
        names.push_back(value.name);
      }
    }
  }
  return names;
}

// "rank 3 (node2) has", "ranks 1-3,5 (node1, node2) have".
std::string subject(std::span<const int> ranks, const std::vector<std::string>& hosts) {
  constexpr std::size_t kMostHosts = 3;
  std::vector<std::string> named;
  std::size_t others = 0;
  for (const int rank : ranks) {
    const std::string& host = hosts[static_cast<std::size_t>(rank)];
    if (std::find(named.begin(), named.end(), host) == named.end()) {
      others += named.size() == kMostHosts ? 1 : 0;
      if (named.size() < kMostHosts) {
        named.push_back(host);
      }
    }
  }
  return fmt::format("{} {} ({}{}) {}", ranks.size() == 1 ? "rank" : "ranks", ranges_text(ranks),
                     fmt::join(named, ", "), others > 0 ? " and more" : "",
                     ranks.size() == 1 ? "has" : "have");
}

// "rank 1 (a) has lr = 1e-4, rank 0 (b) has lr = 1e-3": each other value with all of its ranks.
std::string who_has_what(const std::string& name, const std::vector<std::vector<NamedValue>>& all,
                         const std::vector<std::string>& hosts) {
  constexpr std::size_t kMostGroups = 4;
  struct Group {
    const std::string* value;
    std::vector<int> ranks;
  };
  std::vector<Group> groups;  // the first is rank 0's
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::string* value = find(all[rank], name);
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const Group& known) { return is_same(known.value, value); });
    if (group == groups.end()) {
      group = groups.insert(groups.end(), {value, {}});
    }
    group->ranks.push_back(static_cast<int>(rank));
  }
  const Group& reference = groups.front();
  std::string text;
  for (std::size_t i = 1; i < std::min(groups.size(), kMostGroups); ++i) {
    text += fmt::format("{} {}, ", subject(groups[i].ranks, hosts),
                        shown(name, groups[i].value, reference.value));
  }
  const std::array first = {0};
  const std::string* other = groups.size() > 1 ? groups[1].value : nullptr;
  return fmt::format("{}{} {}", text, subject(first, hosts), shown(name, reference.value, other));
}

std::uint64_t hash_of_this_program() {
  constexpr std::size_t kBlockBytes = std::size_t{1} << 20;
  std::ifstream file("/proc/self/exe", std::ios::binary);
  if (!file) {
    return 0;  // no /proc: the other parts of the build id remain
  }
  Xxh3 hash;
  std::vector<char> block(kBlockBytes);
  while (file) {
    file.read(block.data(), static_cast<std::streamsize>(block.size()));
    hash.add(std::string_view(block.data(), static_cast<std::size_t>(file.gcount())));
  }
  return hash.digest64();
}

// A small file that goes with its object.
class ProbeFile {
 public:
  ProbeFile(fs::path path, std::string_view content) : path_(std::move(path)) {
    try {
      write_whole_file(path_, bytes_of(content));
    } catch (const WriteError& error) {
      remove();
      throw WriteError(fmt::format("cannot write to the output folder {}: {}",
                                   path_.parent_path().string(), error.message()),
                       TESSERA_HERE);
    }
  }
  ~ProbeFile() { remove(); }
  ProbeFile(const ProbeFile&) = delete;
  ProbeFile& operator=(const ProbeFile&) = delete;

 private:
  void remove() noexcept {
    std::error_code ignored;  // it may not have been made
    fs::remove(path_, ignored);
  }
  fs::path path_;
};

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void make_folder(const fs::path& folder, OutContents contents) {
  // Found here, and not at the first save. Relative paths stay so: their own length counts.
  const std::size_t most = PATH_MAX - 2 - longest_name_in_run_folder();
  if (folder.native().size() > most) {
    throw ConfigError(
        fmt::format("--out has {} bytes, and with the names of a "
                    "checkpoint's files behind it at most {} are possible: give a shorter one, "
                    "such as a path relative to a folder nearer to it",
                    folder.native().size(), most),
        TESSERA_HERE);
  }
  require_room_for_folder(folder, fmt::format("the output folder {}", folder.string()));
  std::error_code error;
  fs::create_directories(folder, error);
  if (std::error_code unknown; error && !fs::is_directory(folder, unknown)) {
    throw WriteError(
        fmt::format("cannot make the output folder {}: {}", folder.string(), error.message()),
        TESSERA_HERE);
  }
  const fs::directory_iterator first(folder, error);
  if (error) {
    throw WriteError(
        fmt::format("cannot read the output folder {}: {}", folder.string(), error.message()),
        TESSERA_HERE);
  }
  if (contents == OutContents::must_be_empty && first != fs::directory_iterator()) {
    throw ConfigError(
        fmt::format("the output folder {} is not empty (it has {}): choose another one",
                    folder.string(), first->path().filename().string()),
        TESSERA_HERE);
  }
}

void require_same_folder(const MpiSession& session, const fs::path& folder, const fs::path& probe,
                         const std::string& nonce, double timeout_seconds) {
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_seconds);
  while (content_of(folder / probe) != nonce) {
    if (std::chrono::steady_clock::now() > end) {
      throw ConfigError(
          fmt::format(
              "the output folder {} on host {} is not the folder that rank 0 has under this "
              "name: --out must be on a file system that all hosts share",
              folder.string(), session.host()),
          TESSERA_HERE);
    }
    enter_phase("check of the output folder");
    std::this_thread::sleep_for(kRetryInterval);
  }
}

}  // namespace

void require_same_start(MpiSession& session, std::span<const NamedValue> values) {
  std::vector<NamedValue> all(values.begin(), values.end());
  all.push_back({"build", build_id()});
  const std::string mine = encode(all);
  // Hashes first: on many ranks the texts themselves are only worth gathering when they differ.
  const std::vector<std::string> hashes =
      session.control().gather_text(std::to_string(xxh3_64(bytes_of(mine))));
  if (std::all_of(hashes.begin(), hashes.end(),
                  [&](const std::string& hash) { return hash == hashes.front(); })) {
    return;
  }
  const std::vector<std::string> texts = session.control().gather_text(mine);
  const std::vector<std::string> hosts = session.control().gather_text(session.host());
  std::vector<std::vector<NamedValue>> lists;
  lists.reserve(texts.size());
  for (const std::string& text : texts) {
    lists.push_back(decode(text));
  }
  const auto other = std::find_if(texts.begin(), texts.end(),
                                  [&](const std::string& text) { return text != texts.front(); });
  TESSERA_REQUIRE(other != texts.end(), "hashes differ, texts do not");
  const std::vector<std::string> names =
      differences(lists.front(), lists[static_cast<std::size_t>(other - texts.begin())]);
  std::string what = names.empty()
                         ? fmt::format("rank {} ({}) has the options in another order than rank 0",
                                       other - texts.begin(),
                                       hosts[static_cast<std::size_t>(other - texts.begin())])
                         : who_has_what(names.front(), lists, hosts);
  if (names.size() > 1) {
    constexpr std::size_t kMostNames = 5;
    const auto more = std::span(names).subspan(1, std::min(names.size() - 1, kMostNames));
    what += fmt::format("; {}{} {} too", fmt::join(more, ", "),
                        names.size() - 1 > more.size() ? " and more" : "",
                        names.size() == 2 ? "differs" : "differ");
  }
  constexpr int kConfigStatus = 2;
  throw_agreed({kConfigStatus,
                fmt::format("{}: start every rank with the same program, options and data", what)},
               TESSERA_HERE);
}

std::string version_text() {
  return fmt::format("tessera {}, commit {}", TESSERA_VERSION, TESSERA_COMMIT);
}

std::string build_id() {
  static const std::uint64_t hash = hash_of_this_program();
  return fmt::format("tessera {}, {}, commit {}, program {}", TESSERA_VERSION, __VERSION__,
                     TESSERA_COMMIT, hash_text(hash));
}

MadeFolders prepare_out_folder(MpiSession& session, const fs::path& folder,
                               const OutFolderOptions& options) {
  constexpr const char* kProbeName = ".tessera-probe-";
  MadeFolders made;  // outlives the probe in them
  std::unique_ptr<ProbeFile> probe;
  std::string nonce;
  agree(session, [&] {
    if (session.rank() == 0) {
      made = MadeFolders(folder);
      make_folder(folder, options.contents);
      nonce = fmt::format("{:08x}{:08x}", std::random_device{}(), std::random_device{}());
      probe = std::make_unique<ProbeFile>(folder / (kProbeName + nonce), nonce);
    }
  });
  nonce = session.control().gather_text(nonce).front();
  agree(session, [&] {
    require_same_folder(session, folder, kProbeName + nonce, nonce, options.timeout_seconds);
    if (session.local_rank() == 0) {
      const ProbeFile written_here(
          folder / fmt::format("{}{}-rank{}", kProbeName, nonce, session.rank()), nonce);
    }
  });
  return made;
}

}  // namespace tessera
