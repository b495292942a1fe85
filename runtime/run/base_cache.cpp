#include "runtime/run/base_cache.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/base/hash.h"
#include "kernels/base/log.h"
#include "kernels/base/quantity.h"
#include "model/json_text.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/launch/agree.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr const char* kFolder = "base-nf4";
constexpr const char* kDescription = "base.json";
constexpr const char* kNewDescription = "base.json.new";
constexpr const char* kSuffix = ".nf4";
constexpr int kFormat = 1;
constexpr Index kHashedBytes = 1024;
constexpr std::size_t kMostDescription = std::size_t{1} << 20U;
constexpr std::uint64_t kOtherFiles = std::uint64_t{16} << 20U;  // manifest, metrics, start.txt

// The sum over blocks of bytes, the last one filled up with zeros.
std::uint64_t hash_of(UnitId unit, Index begin, std::span<const std::byte> bytes, Index end) {
  constexpr unsigned kBlockBits = 44;
  std::uint64_t sum = 0;
  std::array<std::byte, kHashedBytes> block{};
  for (Index at = begin; at < std::min(end, begin + std::ssize(bytes)); at += kHashedBytes) {
    const Index count = std::min({kHashedBytes, end - at, begin + std::ssize(bytes) - at});
    block.fill(std::byte{0});
    std::copy_n(bytes.begin() + (at - begin), count, block.begin());
    sum += xxh3_64(block, (static_cast<std::uint64_t>(unit) << kBlockBits) +
                              static_cast<std::uint64_t>(at / kHashedBytes));
  }
  return sum;
}

// "block.12.nf4"
bool is_block(const std::string& name) {
  constexpr std::string_view kBlock = "block.";
  const std::string_view suffix = kSuffix;
  const std::string_view text = name;
  if (!text.starts_with(kBlock) || !text.ends_with(suffix) ||
      text.size() <= kBlock.size() + suffix.size()) {
    return false;
  }
  const std::string_view number =
      text.substr(kBlock.size(), text.size() - kBlock.size() - suffix.size());
  return number.find_first_not_of("0123456789") == std::string_view::npos;
}

// base.json: "format", and these.
struct Description {
  std::string made_of;  // empty: there are no blocks, or not all
  std::uint64_t base_hash = 0;
  std::uint64_t blocks_hash = 0;
};

// A description that this program wrote; none: there is none, or it is not one of ours.
std::optional<Description> read_description(const std::filesystem::path& folder) {
  try {
    const Json json = parse_json_line(read_whole_file(folder / kDescription, kMostDescription));
    if (!json.is_object() || json.value("format", 0) != kFormat) {
      return std::nullopt;
    }
    return Description{json.at("made_of").get<std::string>(),
                       json.at("base_hash").get<std::uint64_t>(),
                       json.at("blocks_hash").get<std::uint64_t>()};
  } catch (const Error&) {
    return std::nullopt;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

void say_nothing_is_kept(const std::string& why) {
  log_line(LogLevel::warning,
           fmt::format("the base in nf4 is not kept for the next start: {}", why));
}

}  // namespace

std::uint64_t base_cache_bytes(const PackedLayout& packed) {
  std::uint64_t bytes = 0;
  for (UnitId unit = 0; unit < packed.bytes().unit_count(); ++unit) {
    if (packed.is_packed(unit)) {
      bytes += static_cast<std::uint64_t>(packed.bytes().unit(unit).count);
    }
  }
  return bytes;
}

BaseCache::BaseCache(std::filesystem::path run_folder, std::string made_of,
                     std::string trained_with, const PackedLayout& packed, Communicator& comm)
    : folder_(std::move(run_folder) / kFolder),
      made_of_(std::move(made_of)),
      trained_with_(std::move(trained_with)),
      packed_(packed),
      comm_(comm) {}

std::filesystem::path BaseCache::file_of(UnitId unit) const {
  return folder_ / (packed_.bytes().unit(unit).name + kSuffix);
}

std::uint64_t BaseCache::sum_over_ranks(std::uint64_t mine) const {
  std::uint64_t sum = 0;
  for (const std::string& text : comm_.gather_text(std::to_string(mine))) {
    sum += std::stoull(text);
  }
  return sum;
}

std::optional<std::uint64_t> BaseCache::find() {
  std::string found;
  if (comm_.rank() == 0) {
    const std::optional<Description> kept = read_description(folder_);
    if (kept && kept->made_of == made_of_) {
      found = fmt::format("{} {}", kept->base_hash, kept->blocks_hash);
    }
  }
  found = comm_.gather_text(found).front();
  if (found.empty()) {
    return std::nullopt;
  }
  hash_ = 0;
  blocks_hash_ = std::stoull(found.substr(found.find(' ') + 1));
  return std::stoull(found);
}

void BaseCache::read(UnitId unit, Index begin, std::span<std::byte> bytes) const {
  const Index end = packed_.bytes().unit(unit).count;
  const Index count = std::clamp<Index>(end - begin, 0, std::ssize(bytes));
  if (count > 0) {
    const File file = File::open_read(file_of(unit));
    file.read_at(static_cast<std::uint64_t>(begin), bytes.first(static_cast<std::size_t>(count)));
    hash_ += hash_of(unit, begin, bytes, end);
  }
}

bool BaseCache::is_undamaged() const {
  return sum_over_ranks(hash_) == blocks_hash_;
}

bool BaseCache::belongs_to_run() const {
  const std::optional<Description> kept = read_description(folder_);
  return kept && !kept->made_of.empty() && kept->made_of != made_of_ &&
         hash_text(kept->base_hash) == trained_with_;
}

// Files of another base; what is not ours stays, and nothing is kept beside it.
void BaseCache::clear() const {
  const std::vector<std::filesystem::path> files = list_folder(folder_);
  if (!files.empty() && !read_description(folder_)) {
    throw WriteError(fmt::format("{} was not made by train: move it away", folder_.string()),
                     TESSERA_HERE);
  }
  for (const std::filesystem::path& file : files) {
    const std::string name = file.filename().string();
    if (name != kDescription && name != kNewDescription && !is_block(name)) {
      throw WriteError(
          fmt::format("{} is not of a base in nf4: move it away", (folder_ / name).string()),
          TESSERA_HERE);
    }
  }
  describe({}, 0, 0);  // of nothing, from here on
  remove_blocks();
}

void BaseCache::remove_blocks() const {
  for (const std::filesystem::path& file : list_folder(folder_)) {
    const std::filesystem::path path = folder_ / file.filename();
    if (is_block(path.filename().string()) && !std::filesystem::remove(path)) {
      throw WriteError(fmt::format("cannot remove {}", path.string()), TESSERA_HERE);
    }
  }
}

void BaseCache::require_room(std::uint64_t checkpoint_bytes) const {
  const std::uint64_t blocks = base_cache_bytes(packed_);
  const std::uint64_t others = checkpoint_bytes + kOtherFiles;
  const std::uint64_t room = available_bytes(folder_);
  if (room < blocks + others) {
    throw WriteError(fmt::format("{} are free in {}, and {} are needed for it and {} for a "
                                 "checkpoint and the run's other files: free some before the next "
                                 "start",
                                 format_bytes(room), folder_.string(), format_bytes(blocks),
                                 format_bytes(others)),
                     TESSERA_HERE);
  }
}

void BaseCache::describe(const std::string& made_of, std::uint64_t base_hash,
                         std::uint64_t blocks_hash) const {
  const std::string text = json_text(Json{{"format", kFormat},
                                          {"made_of", made_of},
                                          {"base_hash", base_hash},
                                          {"blocks_hash", blocks_hash}},
                                     2);
  std::filesystem::remove(folder_ / kNewDescription);  // of a start that was killed
  write_whole_file(folder_ / kNewDescription, std::as_bytes(std::span(text)));
  std::filesystem::rename(folder_ / kNewDescription, folder_ / kDescription);
  sync_folder(folder_);
}

bool BaseCache::begin(std::uint64_t checkpoint_bytes) {
  constexpr const char* kCompares = "compare";
  std::string answer;  // why nothing is kept, or kCompares
  if (comm_.rank() == 0) {
    try {
      if (belongs_to_run()) {
        answer = kCompares;
      } else if (path_exists(folder_)) {
        clear();
        require_room(checkpoint_bytes);
      } else {
        make_new_folder(folder_);
        describe({}, 0, 0);
        require_room(checkpoint_bytes);
      }
    } catch (...) {
      answer = failure_of(std::current_exception()).message;
      say_nothing_is_kept(answer);
    }
  }
  hash_ = 0;
  answer = comm_.gather_text(answer).front();
  compares_ = answer == kCompares;
  return compares_ || answer.empty();
}

void BaseCache::write(UnitId unit, std::span<const std::byte> packed) {
  if (compares_) {
    hash_ += hash_of(unit, 0, packed, std::ssize(packed));
    return;
  }
  if (!failure_.empty()) {
    return;
  }
  try {
    File file = File::create(file_of(unit));
    file.allocate(packed.size());
    file.write_at(0, packed);
    file.close();
    hash_ += hash_of(unit, 0, packed, std::ssize(packed));
  } catch (const Error& error) {
    failure_ = error.message();
  }
}

// The blocks that are here, where they are the same, under the name that they are made of now.
void BaseCache::take_over(std::uint64_t base_hash, std::uint64_t blocks_hash) const {
  const std::optional<Description> kept = read_description(folder_);
  if (!kept || kept->base_hash != base_hash) {
    return;  // a base that the run was not trained with: the start is about to be refused
  }
  if (kept->blocks_hash == blocks_hash) {
    describe(made_of_, base_hash, blocks_hash);
    return;
  }
  say_nothing_is_kept(fmt::format(
      "{} has other blocks of the same base: remove it, and the next start makes them again",
      folder_.string()));
}

void BaseCache::finish(std::uint64_t base_hash) {
  const std::uint64_t blocks_hash = sum_over_ranks(hash_);
  std::string failure;
  for (const std::string& each : comm_.gather_text(failure_)) {
    failure = failure.empty() ? each : failure;
  }
  if (comm_.rank() != 0) {
    return;
  }
  try {
    if (compares_) {
      take_over(base_hash, blocks_hash);
      return;
    }
    if (!failure.empty()) {
      remove_blocks();  // base.json is of nothing since `begin`
      throw WriteError(failure, TESSERA_HERE);
    }
    describe(made_of_, base_hash, blocks_hash);
    log_line(LogLevel::info,
             fmt::format("the base in nf4 is kept in {} for the next start", folder_.string()));
  } catch (...) {
    say_nothing_is_kept(failure_of(std::current_exception()).message);
  }
}

}  // namespace tessera
