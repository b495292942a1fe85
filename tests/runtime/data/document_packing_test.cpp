#include "runtime/data/document_packing.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include <boost/test/unit_test.hpp>

#include "tests/runtime/data/token_files.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

// A token file with documents of these numbers of tokens.
TokenFile file_of(const std::filesystem::path& path, const std::vector<Index>& lengths) {
  Documents documents;
  for (const Index length : lengths) {
    documents.push_back(counting(static_cast<std::size_t>(length)));
  }
  write_tokens(path, documents);
  return TokenFile(path);
}

using Sequences = std::vector<std::vector<DocumentPiece>>;

Sequences all_sequences(const TokenFile& file, const DocumentPacking& packing) {
  Sequences sequences(static_cast<std::size_t>(packing.sequences()));
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    packing.pieces(file, static_cast<Index>(s), sequences[s]);
  }
  return sequences;
}

// What the header says, done in the plain way: for each piece every sequence is looked at.
Sequences reference(const std::vector<Index>& lengths, Index T) {
  Sequences whole;
  std::vector<DocumentPiece> rests;
  Index begin = 0;
  for (const Index length : lengths) {
    const Index places = length - 1;
    for (Index i = 0; i < places / T; ++i) {
      whole.push_back({{.begin = begin + i * T, .tokens = T}});
    }
    if (places % T > 0) {
      rests.push_back({.begin = begin + places / T * T, .tokens = places % T});
    }
    begin += length;
  }
  std::stable_sort(rests.begin(), rests.end(), [](const DocumentPiece& a, const DocumentPiece& b) {
    return a.tokens > b.tokens;
  });
  struct Packed {
    std::vector<DocumentPiece> pieces;
    Index room;
    Index changed;  // when it came to have this room
  };
  std::vector<Packed> packed;
  Index time = 0;
  for (const DocumentPiece& piece : rests) {
    Packed* best = nullptr;
    for (Packed& each : packed) {
      if (each.room >= piece.tokens &&
          (best == nullptr || each.room < best->room ||
           (each.room == best->room && each.changed > best->changed))) {
        best = &each;
      }
    }
    if (best == nullptr) {
      best = &packed.emplace_back(Packed{{}, T, 0});
    }
    best->pieces.push_back(piece);
    best->room -= piece.tokens;
    best->changed = ++time;
  }
  for (const Packed& each : packed) {
    whole.push_back(each.pieces);
  }
  return whole;
}

void check_packing(const std::filesystem::path& path, const std::vector<Index>& lengths, Index T) {
  const TokenFile file = file_of(path, lengths);
  const DocumentPacking packing(file, T);
  const Sequences sequences = all_sequences(file, packing);
  BOOST_TEST((sequences == reference(lengths, T)));
  // every token but a document's last is an input once, and no sequence has more than T
  std::map<Index, Index> used;
  Index tokens = 0;
  for (const std::vector<DocumentPiece>& pieces : sequences) {
    Index places = 0;
    for (const DocumentPiece& piece : pieces) {
      BOOST_TEST(piece.tokens > 0);
      places += piece.tokens;
      for (Index t = piece.begin; t < piece.begin + piece.tokens; ++t) {
        ++used[t];
      }
    }
    BOOST_TEST(places > 0);
    BOOST_TEST(places <= T);
    tokens += places;
  }
  Index begin = 0;
  PackingCounts expected = {.sequences = std::ssize(sequences), .tokens = tokens};
  for (const Index length : lengths) {
    for (Index t = 0; t < length; ++t) {
      const auto found = used.find(begin + t);
      BOOST_TEST((found == used.end() ? 0 : found->second) == (t + 1 < length ? 1 : 0));
    }
    begin += length;
    expected.documents += length > 1 ? 1 : 0;
    expected.left_out += length > 1 ? 0 : 1;
    expected.cut += length > T + 1 ? 1 : 0;
  }
  const PackingCounts& counts = packing.counts();
  BOOST_TEST(counts.documents == expected.documents);
  BOOST_TEST(counts.left_out == expected.left_out);
  BOOST_TEST(counts.cut == expected.cut);
  BOOST_TEST(counts.sequences == expected.sequences);
  BOOST_TEST(counts.tokens == expected.tokens);
  BOOST_TEST(counts.padding(T) == expected.sequences * T - tokens);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(document_packing)

BOOST_AUTO_TEST_CASE(lengths_around_a_sequence_are_packed_and_cut) {
  const TempFolder folder;
  constexpr Index kT = 8;
  for (const std::vector<Index>& lengths : std::vector<std::vector<Index>>{
           {2},
           {kT},
           {kT + 1},
           {kT + 2},
           {2 * kT},
           {2 * kT + 1},
           {2 * kT + 2},
           {1, 1, 2, 1},
           {1, kT + 1, 1, 3 * kT + 4, 2, 2, 2, 5, 4, 1},
           {5, 5, 5, 5, 3, 3, 3, 3},
           std::vector<Index>(100, 2),
       }) {
    BOOST_TEST_CONTEXT(lengths.size() << " documents, the first of " << lengths.front()) {
      check_packing(folder / "a.h5", lengths, kT);
    }
  }
}

BOOST_AUTO_TEST_CASE(random_documents_are_packed_as_by_looking_at_every_sequence) {
  const TempFolder folder;
  std::mt19937 random(7);
  for (const Index T : {Index{1}, Index{2}, Index{63}, Index{64}, Index{65}, Index{300}}) {
    for (const Index longest : {Index{3}, T + 2, 3 * T}) {
      std::uniform_int_distribution<Index> length(1, longest);
      std::vector<Index> lengths(700);
      std::generate(lengths.begin(), lengths.end(), [&] { return length(random); });
      BOOST_TEST_CONTEXT("T " << T << ", documents up to " << longest) {
        check_packing(folder / "a.h5", lengths, T);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_file_whose_documents_have_one_token_has_no_sequences) {
  const TempFolder folder;
  const TokenFile file = file_of(folder / "a.h5", {1, 1, 1});
  const DocumentPacking packing(file, 4);
  BOOST_TEST(packing.sequences() == 0);
  BOOST_TEST(packing.counts().left_out == 3);
  BOOST_TEST(packing.counts().fill(4) == 0.0);
  std::vector<DocumentPiece> pieces;
  BOOST_CHECK_THROW(packing.pieces(file, 0, pieces), ContractError);
}

// Log-uniform lengths, as text has them: next to nothing is padding.
BOOST_AUTO_TEST_CASE(mixed_documents_fill_their_sequences) {
  const TempFolder folder;
  std::mt19937 random(3);
  std::uniform_real_distribution<double> exponent(std::log(20.0), std::log(1025.0));
  std::vector<Index> lengths(4000);
  std::generate(lengths.begin(), lengths.end(),
                [&] { return static_cast<Index>(std::exp(exponent(random))); });
  const TokenFile file = file_of(folder / "a.h5", lengths);
  constexpr double kLeastFill = 0.99;
  BOOST_TEST(DocumentPacking(file, 1024).counts().fill(1024) > kLeastFill);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
