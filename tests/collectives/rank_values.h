// Values for tests of collectives: small integers, so that every sum of them is exact in every type
// and results are compared with ==.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "collectives/communicator.h"

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

/// Element i reduced over all ranks.
[[nodiscard]] inline double reduced_value(int ranks, Index i, ReduceOp op) {
  double value = rank_value(0, i);
  for (int r = 1; r < ranks; ++r) {
    value = op == ReduceOp::sum ? value + rank_value(r, i) : std::max(value, rank_value(r, i));
  }
  return value;
}

/// What exchange_slices must give rank `r`: slice r of every rank's input, in rank order.
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

/// Elements [begin, begin + count) reduced over all ranks.
[[nodiscard]] inline std::vector<double> reduced_values(int ranks, Index begin, Index count,
                                                        ReduceOp op) {
  std::vector<double> values;
  for (Index i = begin; i < begin + count; ++i) {
    values.push_back(reduced_value(ranks, i, op));
  }
  return values;
}

}  // namespace tessera::test
