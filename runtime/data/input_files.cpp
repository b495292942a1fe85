#include "runtime/data/input_files.h"

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <sys/stat.h>

#include "kernels/base/file_status.h"
#include "kernels/base/input_file.h"
#include "kernels/base/read_error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// One path's folders. Links to folders wait until all others have been read, so that a folder is
// found under its own name where it has one here.
class FolderWalk {
 public:
  FolderWalk(const fs::path& root, LeftOut& left_out) : left_out_(left_out) {
    if (const std::error_code error = read(root); error) {
      throw FormatError(fmt::format("cannot read folder {}: {}", root.string(), error.message()),
                        TESSERA_HERE);
    }
    while (!waiting_.empty()) {
      std::vector<fs::path> folders = std::exchange(waiting_, {});
      std::sort(folders.begin(), folders.end());
      for (const fs::path& folder : folders) {
        read_inner(folder);
      }
    }
    std::sort(files_.begin(), files_.end());
  }
  [[nodiscard]] std::vector<fs::path>& files() noexcept { return files_; }

 private:
  void read_inner(const fs::path& folder) {
    if (read(folder)) {
      left_out_.add("a folder that cannot be read", folder);
    }
  }

  std::error_code read(const fs::path& folder) {
    struct stat status = {};
    if (::stat(folder.c_str(), &status) != 0) {
      return {errno, std::generic_category()};
    }
    if (!seen_.emplace(status.st_dev, status.st_ino).second) {
      left_out_.add("a link to a folder that is read already", folder);
      return {};
    }
    std::error_code error;
    std::vector<fs::path> entries;
    for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
         entry.increment(error)) {
      entries.push_back(entry->path());
    }
    std::sort(entries.begin(), entries.end());
    for (const fs::path& entry : entries) {
      take(entry);
    }
    return error;
  }

  void take(const fs::path& path) {
    std::error_code error;
    const bool is_link = fs::is_symlink(fs::symlink_status(path, error));
    switch (fs::status(path, error).type()) {
      case fs::file_type::regular:
        files_.push_back(path);
        break;
      case fs::file_type::directory:
        if (is_link) {
          waiting_.push_back(path);
        } else {
          read_inner(path);
        }
        break;
      case fs::file_type::fifo:
        left_out_.add("a named pipe", path);
        break;
      case fs::file_type::socket:
        left_out_.add("a socket", path);
        break;
      case fs::file_type::block:
      case fs::file_type::character:
        left_out_.add("a device", path);
        break;
      default:
        left_out_.add(is_link ? "a link to nothing" : "cannot be read", path);
    }
  }

  LeftOut& left_out_;
  std::set<std::pair<dev_t, ino_t>> seen_;
  std::vector<fs::path> waiting_;
  std::vector<fs::path> files_;
};

}  // namespace

void LeftOut::add(std::string_view reason, const fs::path& path) {
  const auto found = std::find_if(rows_.begin(), rows_.end(),
                                  [&](const Row& row) { return row.reason == reason; });
  if (found != rows_.end()) {
    ++found->count;
  } else {
    rows_.push_back({std::string(reason), 1, path});
  }
}

void LeftOut::add(const LeftOut& other) {
  for (const Row& row : other.rows_) {
    add(row.reason, row.first);
    const auto mine = std::find_if(rows_.begin(), rows_.end(),
                                   [&](const Row& r) { return r.reason == row.reason; });
    mine->count += row.count - 1;
  }
}

Index LeftOut::count() const noexcept {
  return std::accumulate(rows_.begin(), rows_.end(), Index{0},
                         [](Index sum, const Row& row) { return sum + row.count; });
}

InputFiles list_files(const std::vector<fs::path>& paths) {
  InputFiles found;
  for (const fs::path& path : paths) {
    if (!path_exists(path)) {
      throw MissingError(
          fmt::format("cannot read {}: {}", path.string(), open_failure(path, ENOENT)),
          TESSERA_HERE);
    }
    if (!is_folder(path)) {
      found.files.push_back({path, true});
      continue;
    }
    FolderWalk walk(path, found.left_out);
    for (fs::path& file : walk.files()) {
      found.files.push_back({std::move(file), false});
    }
  }
  return found;
}

}  // namespace tessera
