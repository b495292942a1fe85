#include "runtime/data/data_set.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/file_status.h"
#include "kernels/base/input_file.h"
#include "kernels/base/quantity.h"
#include "runtime/data/header_checksum.h"
#include "runtime/data/input_files.h"

namespace tessera {
namespace {

using Path = std::filesystem::path;

constexpr std::string_view kHeldOut = ".held-out.h5";

[[noreturn]] void refuse(const std::string& message) {
  throw ConfigError(message, TESSERA_HERE);
}

bool is_list(const Path& path) {
  return path.extension() == ".list";  // .txt is text, which people give by mistake
}

void add_folder(DataSet& set) {
  Index held_out = 0;
  Index others = 0;
  for (const InputFiles::File& file : list_files({set.path}).files) {
    const Path& path = file.path;
    if (path.filename().string().ends_with(kHeldOut)) {
      ++held_out;
    } else if (has_header_checksum(path)) {
      set.files.push_back(path);
    } else if (path.extension() == ".h5") {
      refuse(fmt::format("{} is not a token file, and is in the folder of --data {}: move it away, "
                         "or give the files by name",
                         path.string(), set.path.string()));
    } else {
      ++others;
    }
  }
  if (set.files.empty()) {
    refuse(fmt::format("--data {}: there is no token file in this folder but {}; make them with "
                       "tokenize",
                       set.path.string(), counted(held_out, "held-out file")));
  }
  if (held_out > 0) {
    set.notes.push_back(fmt::format("--data {}: {} of tokenize --held-out {} left out",
                                    set.path.string(), counted(held_out, "file"),
                                    held_out == 1 ? "is" : "are"));
  }
  if (others > 0) {
    set.notes.push_back(
        fmt::format("--data {}: {} that {} left out", set.path.string(), counted(others, "file"),
                    others == 1 ? "is not a token file is" : "are not token files are"));
  }
}

void add_list(DataSet& set) {
  require_regular_file(set.path);
  std::ifstream in(set.path, std::ios::binary);
  Index number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.ends_with('\r')) {
      line.pop_back();
    }
    if (line.empty() || line.starts_with('#')) {
      continue;
    }
    const Path file = set.path.parent_path() / line;
    if (!path_exists(file) || is_folder(file)) {
      refuse(fmt::format("--data {} line {}: {} {}; give a token file a line, as a path from the "
                         "list's folder on",
                         set.path.string(), number, file.string(),
                         path_exists(file) ? "is a folder" : "is not there"));
    }
    set.files.push_back(file);
  }
  if (in.bad()) {
    throw FormatError(fmt::format("cannot read {}", set.path.string()), TESSERA_HERE);
  }
  if (set.files.empty()) {
    refuse(fmt::format("--data {}: the list names no file; give a token file a line",
                       set.path.string()));
  }
}

}  // namespace

DataSet split_weight(std::string_view text) {
  DataSet set;
  set.path = std::string(text);
  const std::size_t colon = text.rfind(':');
  std::error_code ignored;
  if (colon == std::string_view::npos || std::filesystem::exists(set.path, ignored)) {
    return set;
  }
  const std::string_view number = text.substr(colon + 1);
  double weight = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), weight);
  if (number.empty() || end != number.data() + number.size()) {
    return set;  // a colon of the name
  }
  if (error != std::errc() || !std::isfinite(weight) || weight <= 0) {
    refuse(fmt::format("--data {}: the weight {} must be a number above 0", text, number));
  }
  set.path = std::string(text.substr(0, colon));
  set.weight = weight;
  return set;
}

DataSet parse_data_set(const std::string& text) {
  DataSet set = split_weight(text);
  if (is_folder(set.path)) {
    add_folder(set);
  } else if (is_list(set.path) && path_exists(set.path) && !has_header_checksum(set.path)) {
    add_list(set);
  } else {
    set.files.push_back(set.path);
  }
  return set;
}

void require_alike(const DataSet& set, const std::vector<const TokenFile*>& files) {
  const TokenFile& first = *files.front();
  const auto differ = [&](const TokenFile& other, const std::string& what) {
    refuse(fmt::format("{} and {} of --data {} are not one data set: {}; tokenise them alike, or "
                       "give them one by one",
                       first.path().string(), other.path().string(), set.path.string(), what));
  };
  for (const TokenFile* other : files) {
    if (other->has_mask() != first.has_mask()) {
      differ(*other, fmt::format("the {} has a mask of targets, and the other none",
                                 first.has_mask() ? "first" : "second"));
    }
    if (other->info().vocab_size != first.info().vocab_size) {
      differ(*other,
             fmt::format("their vocabularies have {} and {} tokens",
                         grouped(first.info().vocab_size), grouped(other->info().vocab_size)));
    }
    if (other->info().end_token != first.info().end_token) {
      differ(*other, fmt::format("documents end with token {} in one and {} in the other",
                                 first.info().end_token, other->info().end_token));
    }
  }
}

}  // namespace tessera
