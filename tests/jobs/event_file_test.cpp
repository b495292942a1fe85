// TensorBoard's event files byte by byte. The records were written by tensorboard 2.21's own
// EventFileWriter (tests/interop/check_tensorboard.py reads a whole file with it).
#include "jobs/report/event_file.h"

#include <boost/test/unit_test.hpp>

#include "jobs/report/page.h"

namespace tessera::report {
namespace {

std::string hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4U];
    text += kDigits[byte & 0xfU];
  }
  return text;
}

BOOST_AUTO_TEST_SUITE(event_file)

BOOST_AUTO_TEST_CASE(the_checksum_has_the_values_of_rfc_3720) {
  BOOST_TEST(crc32c("123456789") == 0xe3069283U);
  BOOST_TEST(crc32c(std::string(32, '\0')) == 0x8a9136aaU);
  BOOST_TEST(crc32c(std::string(32, '\xff')) == 0x62a8ab43U);
  BOOST_TEST(crc32c("") == 0U);
  BOOST_TEST(masked_crc32c("") == 0xa282ead8U);
}

BOOST_AUTO_TEST_CASE(records_are_those_of_tensorboard) {
  BOOST_TEST(hex(version_record(1.5)) ==
             "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c");
  BOOST_TEST(hex(scalar_record(2.5, 300, {{"train/loss", 0.25}})) ==
             "2100000000000000017becf609000000000000044010ac022a130a110a0a747261696e2f6c6f737315000"
             "0803e3cc9cac5");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(page)

BOOST_AUTO_TEST_CASE(text_cannot_leave_its_place_in_html_or_script) {
  BOOST_TEST(html_text("<b a='1'>\"&") == "&lt;b a=&#39;1&#39;&gt;&quot;&amp;");
  const nlohmann::json json = {{"</script><b>", "<!--\xff&"}};
  const std::string text = script_json(json);
  BOOST_TEST(text.find_first_of("<>&") == std::string::npos);
  BOOST_TEST(nlohmann::json::parse(text).begin().key() == "</script><b>");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::report
