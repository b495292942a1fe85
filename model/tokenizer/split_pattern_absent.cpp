// For builds without PCRE2: no pattern can be made.
#include "kernels/base/error.h"
#include "model/tokenizer/split_pattern.h"

namespace tessera {
namespace {

[[noreturn]] void refuse() {
  throw ConfigError(
      "this build has no PCRE2, which splits text for this kind of tokenizer: install libpcre2-dev "
      "(bash jobs/packages.sh) and build again",
      TESSERA_HERE);
}

}  // namespace

struct PatternScratch::Impl {};
PatternScratch::PatternScratch() = default;
PatternScratch::~PatternScratch() = default;
PatternScratch::PatternScratch(PatternScratch&& other) noexcept = default;
PatternScratch& PatternScratch::operator=(PatternScratch&& other) noexcept = default;

struct SplitPattern::Impl {};
SplitPattern::SplitPattern(std::string_view /*pattern*/) {
  refuse();
}
SplitPattern::~SplitPattern() = default;
SplitPattern::SplitPattern(SplitPattern&& other) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&& other) noexcept = default;

// NOLINTNEXTLINE(*-member-functions-to-static): with PCRE2 it needs the object
std::optional<SplitPattern::Match> SplitPattern::find(std::string_view /*text*/,
                                                      std::size_t /*from*/,
                                                      PatternScratch& /*scratch*/) const {
  refuse();
}

}  // namespace tessera
