#include "kernels/gemm_table.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "kernels/base/error.h"

namespace tessera {
namespace {

constexpr int kHexBase = 16;
constexpr int kOldVersion = 2;
constexpr int kScaledVersion = 3;
constexpr std::string_view kTitleWord = "tessera gemm table ";
constexpr std::string_view kCardWord = "card ";
constexpr std::string_view kLibraryWord = "library ";
constexpr std::string_view kEntryWord = "gemm ";

constexpr std::array kOperandTypes = {DType::f32, DType::bf16, DType::e4m3, DType::e5m2};
constexpr std::array<std::string_view, 3> kScaleWords = {"none", "tensor", "row"};
constexpr std::array<std::string_view, 2> kAccumulationWords = {"full", "fast"};

int alignment_of(const void* data) {
  if (data == nullptr) {
    return kMaxGemmAlignment;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  int alignment = kMaxGemmAlignment;
  while (address % static_cast<std::uintptr_t>(alignment) != 0) {
    alignment /= 2;
  }
  return alignment;
}

std::string_view c_word(const GemmKey& key) {
  if (!key.reads_c) {
    return "none";
  }
  return key.in_place ? "d" : "other";
}

int version_of(const GemmKey& key) {
  const bool is_old = key.in_a == key.in_b && size_in_bytes(key.in_a) > 1 &&
                      key.scale_a == ScaleMode::none && key.scale_b == ScaleMode::none &&
                      key.accumulation == Accumulation::full;
  return is_old ? kOldVersion : kScaledVersion;
}

int version_of(const GemmTableEntries& entries) {
  int version = kOldVersion;
  for (const auto& [key, entry] : entries) {
    version = std::max(version, version_of(key));
  }
  return version;
}

std::string key_text(const GemmKey& key, int version) {
  const bool is_old = version == kOldVersion;
  const std::string in =
      is_old
          ? std::string(dtype_name(key.in_a))
          : fmt::format("{}/{} scale={}/{} accumulate={}", dtype_name(key.in_a),
                        dtype_name(key.in_b), kScaleWords.at(static_cast<std::size_t>(key.scale_a)),
                        kScaleWords.at(static_cast<std::size_t>(key.scale_b)),
                        kAccumulationWords.at(static_cast<std::size_t>(key.accumulation)));
  return fmt::format(
      "m={} n={} k={} a={} b={} lda={} ldb={} ldd={} in={} out={} c={} bias={}{} align={}", key.m,
      key.n, key.k, key.transpose_a == Transpose::yes ? "t" : "n",
      key.transpose_b == Transpose::yes ? "t" : "n", key.lda, key.ldb, key.ldd, in,
      dtype_name(key.out), c_word(key), key.has_bias ? 1 : 0, is_old ? " sms=0" : "",
      fmt::join(key.alignment, "/"));
}

std::string hex_of(const GemmAlgorithmBytes& algorithm) {
  return fmt::format("{:02x}", fmt::join(algorithm, ""));
}

std::string header(int version, const GemmTableOrigin& origin) {
  return fmt::format("{}{}\n{}{}\n{}{}\n", kTitleWord, version, kCardWord, origin.card,
                     kLibraryWord, origin.library);
}

/// Reads the lines of a table; every error names the table and the line.
class TableReader {
 public:
  TableReader(std::string_view text, std::string_view name)
      : stream_(std::string(text)), name_(name) {}

  /// The next line without its comment; false at the end.
  bool next() {
    if (!std::getline(stream_, line_)) {
      return false;
    }
    ++number_;
    line_.erase(std::min(line_.find('#'), line_.size()));
    while (!line_.empty() && (line_.back() == ' ' || line_.back() == '\r')) {
      line_.pop_back();
    }
    return true;
  }

  [[nodiscard]] const std::string& line() const noexcept { return line_; }

  /// What follows `word` at the line's begin.
  [[nodiscard]] std::string rest_after(std::string_view word) const {
    if (!line_.starts_with(word)) {
      fail("begins with '" + std::string(word) + "'");
    }
    return line_.substr(word.size());
  }

  void read_version() {
    const std::string version = rest_after(kTitleWord);
    for (const int known : {kOldVersion, kScaledVersion}) {
      if (version == std::to_string(known)) {
        version_ = known;
        return;
      }
    }
    throw FormatError(
        fmt::format("GEMM table {} is of version '{}', and this program reads versions {} and {}: "
                    "leave it out, or tune afresh",
                    name_, version, kOldVersion, kScaledVersion),
        TESSERA_HERE);
  }

  void require_same(std::string_view word, const std::string& here) {
    if (!next()) {
      fail("begins with '" + std::string(word) + "'");
    }
    if (const std::string there = rest_after(word); there != here) {
      throw ConfigError(
          fmt::format("GEMM table {} was made for {}, and here is {}: leave it out, or "
                      "tune afresh",
                      name_, there, here),
          TESSERA_HERE);
    }
  }

  [[noreturn]] void fail(const std::string& expected) const {
    throw FormatError(fmt::format("GEMM table {}, line {}: expected a line that {}; has '{}'",
                                  name_, number_, expected, line_),
                      TESSERA_HERE);
  }

  /// Nothing where the line is of a GEMM that kept to some multiprocessors (`sms`): earlier
  /// programs could tune those, and nobody asks for one.
  [[nodiscard]] std::optional<std::pair<GemmKey, GemmTableEntry>> entry() const {
    std::map<std::string, std::string> fields;
    std::istringstream words(rest_after(kEntryWord));
    std::string word;
    while (words >> word) {
      const std::size_t equals = word.find('=');
      if (equals == std::string::npos ||
          !fields.emplace(word.substr(0, equals), word.substr(equals + 1)).second) {
        fail("is 'gemm' and fields name=value, each once");
      }
    }
    const auto field = [&](const char* field_name) -> const std::string& {
      const auto found = fields.find(field_name);
      if (found == fields.end()) {
        fail(std::string("has a field ") + field_name);
      }
      return found->second;
    };
    // The number of a word among `allowed`.
    const auto number_of = [&](std::string_view text, const char* field_name, const auto& allowed) {
      const auto found = std::find(allowed.begin(), allowed.end(), text);
      if (found == allowed.end()) {
        fail(fmt::format("has {} one of {}", field_name, fmt::join(allowed, ", ")));
      }
      return static_cast<std::size_t>(found - allowed.begin());
    };
    const auto word_index = [&](const char* field_name,
                                const std::vector<std::string_view>& allowed) {
      return number_of(field(field_name), field_name, allowed);
    };
    const auto transpose = [&](const char* field_name) {
      return word_index(field_name, {"n", "t"}) == 0 ? Transpose::no : Transpose::yes;
    };
    const auto dtype = [&](std::string_view text, const char* field_name) {
      std::vector<std::string_view> names;
      for (const DType type : kOperandTypes) {
        if (version_ == kScaledVersion || size_in_bytes(type) > 1) {
          names.push_back(dtype_name(type));
        }
      }
      return kOperandTypes.at(number_of(text, field_name, names));
    };
    // What a and b have; in version 2 the same for both, of which the line has one word.
    const auto both = [&](const char* field_name) -> std::pair<std::string, std::string> {
      const std::string& text = field(field_name);
      if (version_ == kOldVersion) {
        return {text, text};
      }
      const std::size_t slash = text.find('/');
      if (slash == std::string::npos) {
        fail(std::string("has two words a/b in ") + field_name);
      }
      return {text.substr(0, slash), text.substr(slash + 1)};
    };
    const auto c = word_index("c", {"none", "other", "d"});
    const auto [in_a, in_b] = both("in");
    GemmKey key{.m = count(field("m")),
                .n = count(field("n")),
                .k = count(field("k")),
                .transpose_a = transpose("a"),
                .transpose_b = transpose("b"),
                .lda = count(field("lda")),
                .ldb = count(field("ldb")),
                .ldd = count(field("ldd")),
                .in_a = dtype(in_a, "in"),
                .out = dtype(field("out"), "out"),
                .reads_c = c != 0,
                .in_place = c == 2,
                .has_bias = word_index("bias", {"0", "1"}) == 1,
                .alignment = alignments(field("align")),
                .in_b = dtype(in_b, "in"),
                .scale_a = ScaleMode::none,
                .scale_b = ScaleMode::none,
                .accumulation = Accumulation::full};
    GemmTableEntry chosen{algorithm(field("algo")), {}};
    if (version_ == kOldVersion) {
      if (field("sms") != "0") {
        (void)count(field("sms"));
        return std::nullopt;
      }
    } else {
      const auto [scale_a, scale_b] = both("scale");
      key.scale_a = static_cast<ScaleMode>(number_of(scale_a, "scale", kScaleWords));
      key.scale_b = static_cast<ScaleMode>(number_of(scale_b, "scale", kScaleWords));
      key.accumulation = static_cast<Accumulation>(
          number_of(field("accumulate"), "accumulate", kAccumulationWords));
    }
    return std::pair(key, std::move(chosen));
  }

 private:
  [[nodiscard]] Index count(std::string_view text) const {
    Index value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || end != text.data() + text.size() || value <= 0) {
      fail("has positive numbers for its sizes");
    }
    return value;
  }

  [[nodiscard]] std::array<int, 5> alignments(const std::string& text) const {
    std::array<int, 5> result{};
    std::istringstream parts(text);
    std::string part;
    for (int& alignment : result) {
      if (!std::getline(parts, part, '/')) {
        fail("has five alignments a/b/c/d/bias");
      }
      alignment = static_cast<int>(std::min<Index>(count(part), kMaxGemmAlignment));
    }
    return result;
  }

  [[nodiscard]] GemmAlgorithmBytes algorithm(std::string_view hex) const {
    GemmAlgorithmBytes bytes{};
    if (hex.size() != 2 * bytes.size()) {
      fail(fmt::format("has {} hexadecimal digits in algo", 2 * bytes.size()));
    }
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const char* first = hex.data() + 2 * i;
      const auto [end, code] = std::from_chars(first, first + 2, bytes.at(i), kHexBase);
      if (code != std::errc() || end != first + 2) {
        fail("has hexadecimal digits in algo");
      }
    }
    return bytes;
  }

  std::istringstream stream_;
  std::string name_;
  std::string line_;
  int number_ = 0;
  int version_ = kOldVersion;
};

}  // namespace

GemmKey gemm_key(const GemmArgs& args) {
  const bool reads_c = args.beta != 0.0F;
  return {.m = args.m,
          .n = args.n,
          .k = args.k,
          .transpose_a = args.transpose_a,
          .transpose_b = args.transpose_b,
          .lda = args.lda,
          .ldb = args.ldb,
          .ldd = args.ldd,
          .in_a = args.a.dtype,
          .out = args.d.dtype,
          .reads_c = reads_c,
          .in_place = reads_c && args.c.data == args.d.data,
          .has_bias = args.bias.data != nullptr,
          .alignment = {alignment_of(args.a.data), alignment_of(args.b.data),
                        alignment_of(reads_c ? args.c.data : args.d.data),
                        alignment_of(args.d.data), alignment_of(args.bias.data)},
          .in_b = args.b.dtype,
          .scale_a = args.a.scale_mode,
          .scale_b = args.b.scale_mode,
          .accumulation = args.accumulation};
}

std::string to_text(const GemmKey& key) {
  return key_text(key, version_of(key));
}

std::string write_gemm_table(const GemmTableOrigin& origin, const GemmTableEntries& entries) {
  const int version = version_of(entries);
  std::string text = header(version, origin);
  for (const auto& [key, entry] : entries) {
    text += fmt::format("{}{} algo={} # {}\n", kEntryWord, key_text(key, version),
                        hex_of(entry.algorithm), entry.note);
  }
  return text;
}

std::uint64_t hash_of(const GemmTableOrigin& origin, const GemmTableEntries& entries) {
  if (entries.empty()) {
    return 0;
  }
  const int version = version_of(entries);
  std::string text = header(version, origin);
  for (const auto& [key, entry] : entries) {
    text += key_text(key, version) + hex_of(entry.algorithm) + "\n";
  }
  constexpr std::uint64_t kOffset = 14695981039346656037ULL;
  constexpr std::uint64_t kPrime = 1099511628211ULL;
  std::uint64_t hash = kOffset;
  for (const char letter : text) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * kPrime;
  }
  return hash;
}

GemmTableEntries read_gemm_table(std::string_view text, std::string_view name,
                                 const GemmTableOrigin& here) {
  GemmTableEntries entries;
  TableReader reader(text, name);
  if (!reader.next()) {
    return entries;
  }
  reader.read_version();
  reader.require_same(kCardWord, here.card);
  reader.require_same(kLibraryWord, here.library);
  while (reader.next()) {
    if (reader.line().empty()) {
      continue;
    }
    if (auto entry = reader.entry(); entry && !entries.insert(*std::move(entry)).second) {
      reader.fail("names a shape for the first time");
    }
  }
  return entries;
}

}  // namespace tessera
