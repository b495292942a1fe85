// The hashes are those of the XXH3 of libxxhash, in every variant of the library: files hold them.
#include "kernels/base/hash.h"

#include <string>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>

#include "kernels/base/error.h"

namespace {

using tessera::bytes_of;
using tessera::HashWidth;
using tessera::Xxh3;

}  // namespace

BOOST_AUTO_TEST_SUITE(hash)

// As `xxhsum -H3` and `xxhsum -H2` print them.
BOOST_AUTO_TEST_CASE(known_texts_have_known_hashes) {
  BOOST_TEST(fmt::format("{:016x}", tessera::xxh3_64(bytes_of(""))) == "2d06800538d394c2");
  BOOST_TEST(fmt::format("{:016x}", tessera::xxh3_64(bytes_of("tessera"))) == "bf456a4d41446d60");
  BOOST_TEST(tessera::xxh3_128(bytes_of("")).text() == "99aa06d3014798d86001c324468d497f");
  BOOST_TEST(tessera::xxh3_128(bytes_of("tessera")).text() == "157800c744fd9a1904c1a9b49517cd58");
}

// Of more than the library's buffer and its longest short input, so that every branch is taken.
BOOST_AUTO_TEST_CASE(pieces_hash_as_the_whole) {
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    text += fmt::format("{} ", i * i);
  }
  for (const std::size_t piece : {1UL, 7UL, 256UL, 4096UL}) {
    Xxh3 narrow;
    Xxh3 wide(HashWidth::bits128);
    for (std::size_t at = 0; at < text.size(); at += piece) {
      narrow.add(std::string_view(text).substr(at, piece));
      wide.add(bytes_of(std::string_view(text).substr(at, piece)));
    }
    BOOST_TEST(narrow.digest64() == tessera::xxh3_64(bytes_of(text)));
    BOOST_TEST(wide.digest128().text() == tessera::xxh3_128(bytes_of(text)).text());
  }
}

BOOST_AUTO_TEST_CASE(a_reset_begins_anew_and_empty_pieces_change_nothing) {
  Xxh3 hash(HashWidth::bits128);
  hash.add("something else");
  hash.reset64();
  hash.add(std::string_view());
  hash.add("tessera");
  BOOST_TEST(hash.digest64() == tessera::xxh3_64(bytes_of("tessera")));
  BOOST_CHECK_THROW(static_cast<void>(hash.digest128()), tessera::ContractError);
}

BOOST_AUTO_TEST_CASE(a_seed_gives_another_hash) {
  BOOST_TEST(tessera::xxh3_64(bytes_of("tessera"), 1) != tessera::xxh3_64(bytes_of("tessera")));
}

BOOST_AUTO_TEST_SUITE_END()
