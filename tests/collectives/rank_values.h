// Values for tests of collectives: small integers, so that every sum of them is exact in every type
// and results are compared with ==.
#pragma once

#include <vector>

#include "kernels/device/stream.h"

namespace tessera::test {

/// Element i of rank r's input, in [-5, 5].
[[nodiscard]] inline double rank_value(int r, Index i) {
  return static_cast<double>((Index{7} * r + 3 * i + (i / 11) * r) % 11 - 5);
}

/// The whole input of one rank.
[[nodiscard]] inline std::vector<double> rank_values(int r, Index count) {
  std::vector<double> values;
  for (Index i = 0; i < count; ++i) {
    values.push_back(rank_value(r, i));
  }
  return values;
}

/// Element i added over all ranks.
[[nodiscard]] inline double summed_value(int ranks, Index i) {
  double value = 0;
  for (int r = 0; r < ranks; ++r) {
    value += rank_value(r, i);
  }
  return value;
}

/// What all_to_all must give rank `r`: slice r of every rank's input, in rank order.
[[nodiscard]] inline std::vector<double> exchanged_values(int r, int ranks, Index slice) {
  std::vector<double> values;
  for (int from = 0; from < ranks; ++from) {
    for (Index i = 0; i < slice; ++i) {
      values.push_back(rank_value(from, r * slice + i));
    }
  }
  return values;
}

/// What all_gather must give: the first `slice` elements of every rank, in rank order.
[[nodiscard]] inline std::vector<double> gathered_values(int ranks, Index slice) {
  std::vector<double> values;
  for (int from = 0; from < ranks; ++from) {
    for (Index i = 0; i < slice; ++i) {
      values.push_back(rank_value(from, i));
    }
  }
  return values;
}

/// Elements [begin, begin + count) added over all ranks.
[[nodiscard]] inline std::vector<double> summed_values(int ranks, Index begin, Index count) {
  std::vector<double> values;
  for (Index i = begin; i < begin + count; ++i) {
    values.push_back(summed_value(ranks, i));
  }
  return values;
}

}  // namespace tessera::test
