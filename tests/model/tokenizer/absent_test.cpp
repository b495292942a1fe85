// What stands in for PCRE2 and utf8proc in builds without them: refused by name, with what to install.
#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"
#include "model/tokenizer/nfc.h"
#include "model/tokenizer/split_pattern.h"

namespace tessera::test {
namespace {

template <typename Make>
std::string refusal_of(const Make& make) {
  try {
    make();
  } catch (const ConfigError& error) {
    return error.message();
  }
  return {};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tokenizer_without_libraries)

BOOST_AUTO_TEST_CASE(a_tokenizer_that_needs_a_library_is_refused_by_its_name) {
  const std::string pattern = refusal_of([] { const SplitPattern made("a"); });
  BOOST_TEST(pattern.find("PCRE2") != std::string::npos, pattern);
  BOOST_TEST(pattern.find("libpcre2-dev") != std::string::npos, pattern);
  const std::string nfc = refusal_of([] { const Nfc made(NfcTables::newest); });
  BOOST_TEST(nfc.find("utf8proc") != std::string::npos, nfc);
  BOOST_TEST(nfc.find("libutf8proc-dev") != std::string::npos, nfc);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
