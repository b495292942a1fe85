// Regular expressions that split text into words, run by PCRE2 on UTF-8 with Unicode's properties.
// The constructor takes PCRE2's own syntax; what the patterns of tokenizer files mean in it:
// pattern_syntax.h.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

namespace tessera {

/// What one thread needs to run patterns.
class PatternScratch {
 public:
  PatternScratch();
  ~PatternScratch();
  PatternScratch(PatternScratch&& other) noexcept;
  PatternScratch& operator=(PatternScratch&& other) noexcept;
  PatternScratch(const PatternScratch&) = delete;
  PatternScratch& operator=(const PatternScratch&) = delete;

 private:
  friend class SplitPattern;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class SplitPattern {
 public:
  /// Throws ConfigError in a build without PCRE2, FormatError (a clause that begins with what is
  /// wrong) for a pattern that PCRE2 does not compile, or that matches text of no length.
  explicit SplitPattern(std::string_view pattern);
  ~SplitPattern();
  SplitPattern(SplitPattern&& other) noexcept;
  SplitPattern& operator=(SplitPattern&& other) noexcept;
  SplitPattern(const SplitPattern&) = delete;
  SplitPattern& operator=(const SplitPattern&) = delete;

  struct Match {
    std::size_t begin;
    std::size_t end;  // > begin
  };
  /// The first match in `text` at byte `from` or behind. Lookbehind sees what is before `from`.
  /// Requires: `text` is UTF-8, `from` the beginning of a character. Throws FormatError where the
  /// match needs more steps or memory than is allowed: that is never taken for no match.
  [[nodiscard]] std::optional<Match> find(std::string_view text, std::size_t from,
                                          PatternScratch& scratch) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
