#include "kernels/attention_documents.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "kernels/base/random.h"

namespace tessera::test {
namespace {

constexpr AttentionShape kShape = {
    .batch = 4, .sequence = 4096, .query_heads = 16, .kv_heads = 8, .head_dim = 128};

std::vector<std::int32_t> begins_of(const std::vector<Index>& lengths) {
  std::vector<std::int32_t> begins = {0};
  for (const Index length : lengths) {
    begins.push_back(begins.back() + static_cast<std::int32_t>(length));
  }
  return begins;
}

// Documents of 1 to `longest` tokens that fill every sequence.
std::vector<Index> random_lengths(const AttentionShape& shape, Index longest, std::uint64_t seed) {
  constexpr std::uint64_t kStream = 5;
  std::vector<Index> lengths;
  std::uint64_t next = 0;
  for (Index sequence = 0; sequence < shape.batch; ++sequence) {
    for (Index left = shape.sequence; left > 0; left -= lengths.back()) {
      const auto word = static_cast<Index>(philox(seed, kStream, next++)[0]);
      lengths.push_back(std::min(left, 1 + word % longest));
    }
  }
  return lengths;
}

// What must hold of the groups of any batch.
void check_groups(const AttentionShape& shape, const std::vector<std::int32_t>& begins) {
  const std::vector<DocumentCall> known = document_calls(shape);
  std::vector<std::int32_t> seen;                                           // first tokens
  std::vector<Index> written(static_cast<std::size_t>(begins.back()), -1);  // by which document
  for (const DocumentGroup& group : document_groups(shape, begins)) {
    BOOST_TEST(group.rows <= document_rows(shape));
    BOOST_TEST(std::ssize(group.documents) <= kMostDocumentsOfGroup);
    std::size_t next = 0;
    Index row = 0;
    for (const DocumentCall& call : group.calls) {
      BOOST_TEST((std::find(known.begin(), known.end(), call) != known.end()));
      for (Index place = 0; place < call.documents; ++place) {
        const PlacedDocument& document = group.documents.at(next++);
        BOOST_TEST(document.row >= row);
        BOOST_TEST(document.padded == call.padded);
        BOOST_TEST(document.length <= document.padded);
        row = document.row + document.padded;
        if (document.length == 0) {
          continue;
        }
        seen.push_back(document.begin);
        const Index rows = group.is_in_place ? document.padded : document.length;
        BOOST_TEST(document.begin + rows <= begins.back());
        std::fill_n(written.begin() + document.begin, rows, document.begin);
      }
    }
    BOOST_TEST(next == group.documents.size());
    BOOST_TEST(row <= group.rows);
  }
  std::sort(seen.begin(), seen.end());
  BOOST_TEST(seen == std::vector<std::int32_t>(begins.begin(), begins.end() - 1));
  // the last to write a token's row is its own document
  for (std::size_t i = 0; i + 1 < begins.size(); ++i) {
    for (Index t = begins[i]; t < begins[i + 1]; ++t) {
      BOOST_REQUIRE_EQUAL(written[static_cast<std::size_t>(t)], begins[i]);
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(attention_documents)

BOOST_AUTO_TEST_CASE(every_document_is_in_one_call_and_the_last_to_write_its_rows) {
  for (const Index sequence : {Index{16}, Index{300}, Index{767}, Index{1100}, Index{4096}}) {
    AttentionShape shape = kShape;
    shape.sequence = sequence;
    check_groups(shape, begins_of(std::vector<Index>(4, sequence)));
    check_groups(shape, begins_of(std::vector<Index>(static_cast<std::size_t>(4 * sequence), 1)));
    for (const Index longest : {Index{40}, Index{400}, Index{1000}, Index{4096}}) {
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        check_groups(shape, begins_of(random_lengths(shape, std::min(longest, sequence), seed)));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(long_documents_are_calls_in_place_and_short_ones_share_calls) {
  AttentionShape shape = kShape;
  shape.batch = 1;
  const std::vector<DocumentGroup> groups =
      document_groups(shape, begins_of({2100, 600, 100, 90, 80, 700, 426}));
  BOOST_REQUIRE_EQUAL(groups.size(), 2);
  BOOST_TEST(groups[0].is_in_place);
  BOOST_TEST((groups[0].calls == std::vector<DocumentCall>{{2304, 1}, {640, 1}, {768, 1}}));
  BOOST_TEST(!groups[1].is_in_place);
  BOOST_TEST((groups[1].calls == std::vector<DocumentCall>{{128, 4}, {512, 1}}));
  BOOST_TEST(groups[1].documents[3].length == 0);  // an empty place
  BOOST_TEST(groups[1].rows == 4 * 128 + 512);
}

// The rows behind the last document of a batch are not there.
BOOST_AUTO_TEST_CASE(a_long_document_at_the_end_is_gathered) {
  AttentionShape shape = kShape;
  shape.batch = 1;
  const std::vector<DocumentGroup> groups = document_groups(shape, begins_of({3496, 600}));
  BOOST_REQUIRE_EQUAL(groups.size(), 2);
  BOOST_TEST(groups[0].documents[0].length == 3496);
  BOOST_TEST(!groups[1].is_in_place);
  BOOST_TEST((groups[1].calls == std::vector<DocumentCall>{{640, 1}}));
}

BOOST_AUTO_TEST_CASE(calls_have_at_most_a_quarter_of_their_places_empty) {
  for (Index waiting = 1; waiting <= 200; ++waiting) {
    for (const Index padded : {Index{128}, Index{256}, Index{512}}) {
      const Index documents = documents_of_call(waiting, padded);
      BOOST_TEST((documents - waiting) * 4 <= documents);
      BOOST_TEST((documents == 1 || documents * padded <= 8192));
    }
    BOOST_TEST(documents_of_call(waiting, 640) == 1);
  }
}

// Each is a graph that is compiled at the start of a run.
BOOST_AUTO_TEST_CASE(the_calls_of_a_shape_are_few) {
  BOOST_TEST(document_calls(kShape).size() == 43);
  AttentionShape longer = kShape;
  longer.sequence = 131072;
  BOOST_TEST(document_calls(longer).size() <= 90);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
