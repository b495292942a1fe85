#include "runtime/run/snapshot_output.h"

#include <algorithm>

namespace tessera {

SnapshotPage::SnapshotPage(const ShardState& shard, const StatePage& page,
                           const PageContents& contents, std::vector<float>& room)
    : shard_(shard),
      page_(page),
      contents_(contents),
      room_(room),
      count_(std::clamp<Index>(shard.real_count(page.unit) - page.begin, 0, page.count)) {}

std::span<const float> SnapshotPage::numbers(StateArray array) {
  if (array != StateArray::master && !page_.layout.has(array)) {
    room_.assign(static_cast<std::size_t>(count_), 0.0F);
    return room_;
  }
  const StoredNumbers stored = stored_numbers(page_.layout, array, contents_.state,
                                              contents_.params, page_.count, 0, page_.count);
  const StateArraySpec& wanted = shard_.numbers().arrays()[shard_.numbers().number_of(array)];
  std::span<const float> numbers = room_;
  if (stored.spec == wanted) {
    numbers = {data_as<float>(stored.values), static_cast<std::size_t>(page_.count)};
  } else {
    room_.resize(static_cast<std::size_t>(page_.count));
    decode(stored, room_);
    numbers = room_;
  }
  return numbers.first(static_cast<std::size_t>(count_));
}

}  // namespace tessera
