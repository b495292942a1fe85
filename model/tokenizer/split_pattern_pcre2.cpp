// With PCRE2; split_pattern_absent.cpp stands for it in builds without.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <array>
#include <new>
#include <string>

#include <fmt/format.h>
#include <pcre2.h>

#include "kernels/base/error.h"
#include "model/tokenizer/split_pattern.h"

namespace tessera {
namespace {

constexpr std::uint32_t kMatchLimit = 200'000'000;  // steps: seconds, where a pattern goes astray
constexpr std::size_t kStackBytes = std::size_t{32} << 10U;
constexpr std::size_t kMostStackBytes = std::size_t{256} << 20U;

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text = {};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

struct Free {
  void operator()(pcre2_code* code) const noexcept { pcre2_code_free(code); }
  void operator()(pcre2_compile_context* context) const noexcept {
    pcre2_compile_context_free(context);
  }
  void operator()(pcre2_match_context* context) const noexcept {
    pcre2_match_context_free(context);
  }
  void operator()(pcre2_match_data* data) const noexcept { pcre2_match_data_free(data); }
  void operator()(pcre2_jit_stack* stack) const noexcept { pcre2_jit_stack_free(stack); }
};

template <typename T>
std::unique_ptr<T, Free> made(T* resource) {
  if (resource == nullptr) {
    throw std::bad_alloc();
  }
  return std::unique_ptr<T, Free>(resource);
}

}  // namespace

struct PatternScratch::Impl {
  std::unique_ptr<pcre2_match_data, Free> data = made(pcre2_match_data_create(1, nullptr));
  std::unique_ptr<pcre2_match_context, Free> context = made(pcre2_match_context_create(nullptr));
  std::unique_ptr<pcre2_jit_stack, Free> stack;  // null: this PCRE2 has no JIT

  Impl() : stack(pcre2_jit_stack_create(kStackBytes, kMostStackBytes, nullptr)) {
    pcre2_set_match_limit(context.get(), kMatchLimit);
    if (stack) {
      pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
    }
  }
};

PatternScratch::PatternScratch() : impl_(std::make_unique<Impl>()) {}
PatternScratch::~PatternScratch() = default;
PatternScratch::PatternScratch(PatternScratch&& other) noexcept = default;
PatternScratch& PatternScratch::operator=(PatternScratch&& other) noexcept = default;

struct SplitPattern::Impl {
  std::unique_ptr<pcre2_code, Free> code;
  bool has_jit = false;
};

SplitPattern::SplitPattern(std::string_view pattern) : impl_(std::make_unique<Impl>()) {
  const auto context = made(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE place = 0;
  impl_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                  PCRE2_UTF | PCRE2_UCP, &error, &place, context.get()));
  if (!impl_->code) {
    throw FormatError(
        fmt::format("PCRE2 refuses it at byte {} of {}: {}", place, pattern, message_of(error)),
        TESSERA_HERE);
  }
  std::uint32_t matches_empty = 0;
  pcre2_pattern_info(impl_->code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) {
    throw FormatError("it can match text of no length", TESSERA_HERE);
  }
  impl_->has_jit = pcre2_jit_compile(impl_->code.get(), PCRE2_JIT_COMPLETE) == 0;
}

SplitPattern::~SplitPattern() = default;
SplitPattern::SplitPattern(SplitPattern&& other) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&& other) noexcept = default;

std::optional<SplitPattern::Match> SplitPattern::find(std::string_view text, std::size_t from,
                                                      PatternScratch& scratch) const {
  const PatternScratch::Impl& own = *scratch.impl_;
  const auto* const subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int result = impl_->has_jit
                         ? pcre2_jit_match(impl_->code.get(), subject, text.size(), from,
                                           PCRE2_NO_UTF_CHECK, own.data.get(), own.context.get())
                         : pcre2_match(impl_->code.get(), subject, text.size(), from,
                                       PCRE2_NO_UTF_CHECK, own.data.get(), own.context.get());
  if (result == PCRE2_ERROR_NOMATCH) {
    return std::nullopt;
  }
  if (result < 0) {
    throw FormatError(fmt::format("the tokenizer's pattern does not get through a text of {} "
                                  "bytes, behind its byte {}: {}",
                                  text.size(), from, message_of(result)),
                      TESSERA_HERE);
  }
  const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(own.data.get());
  if (ends[1] <= ends[0]) {
    throw FormatError("the tokenizer's pattern matches text of no length", TESSERA_HERE);
  }
  return Match{ends[0], ends[1]};
}

}  // namespace tessera
