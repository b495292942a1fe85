#include "runtime/run/page_snapshot.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/device/device_backend.h"

namespace tessera {
namespace {

Index largest_page(const ShardState& shard) {
  Index largest = 0;
  for (const StatePage& page : shard.pages()) {
    largest = std::max(largest, page.state.count());
  }
  return largest;
}

bool on_device(const StatePage& page) {
  return page.state.device.kind == DeviceKind::cuda;
}

}  // namespace

PageSnapshot::PageSnapshot(ShardState& shard, PageSweep& optimizer, std::size_t staging_bytes,
                           Arena& arena)
    : shard_(shard),
      optimizer_(optimizer),
      device_(arena.device()),
      page_bytes_(largest_page(shard)) {
  const auto slot_bytes = static_cast<std::size_t>(page_bytes_);
  const std::size_t pages = shard.pages().size();
  const std::size_t slots =
      pages == 0 ? 0 : std::clamp<std::size_t>(staging_bytes / slot_bytes, 1, pages);
  staging_ = arena.allocate(MemoryKind::pinned, DType::u8, {static_cast<Index>(slots), page_bytes_},
                            "checkpoint staging/pages");
  if (void* const memory = staging_.view().data; memory != nullptr) {
    std::memset(memory, 0, staging_.size_bytes());  // the first save shall not wait for its pages
  }
  bounce_ = arena.allocate(MemoryKind::pinned, DType::u8,
                           {arena.device().kind == DeviceKind::cuda ? page_bytes_ : 0},
                           "checkpoint staging/writer");
  for (std::size_t slot = 0; slot < slots; ++slot) {
    slot_copied_.emplace_back(arena.device(), "snapshot.copied");
    free_slots_.push_back(static_cast<int>(slot));
  }
  states_.assign(pages, PageState::taken);
  slot_of_page_.assign(pages, -1);
  optimizer_.set_before_change([this](const StatePage& page) { before_change(page); });
}

PageSnapshot::~PageSnapshot() {
  optimizer_.set_before_change({});
}

void PageSnapshot::begin() {
  const std::lock_guard lock(mutex_);
  TESSERA_REQUIRE(!active_, "one snapshot at a time");
  active_ = true;
  std::fill(states_.begin(), states_.end(), PageState::untaken);
  report_ = {};
}

void PageSnapshot::abandon() {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (states_[i] == PageState::staged || states_[i] == PageState::being_staged) {
      free_slots_.push_back(slot_of_page_[i]);
    }
    states_[i] = PageState::taken;
  }
  active_ = false;
  changed_.notify_all();
}

SnapshotReport PageSnapshot::report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

// On the training thread: the page is about to be changed.
void PageSnapshot::before_change(const StatePage& page) {
  const auto index = static_cast<std::size_t>(&page - shard_.pages().data());
  const double start = host_seconds();
  std::unique_lock lock(mutex_);
  const auto must_stay = [&] {
    return states_[index] == PageState::untaken || states_[index] == PageState::being_taken;
  };
  if (!active_ || !must_stay()) {
    return;
  }
  while (must_stay()) {
    // While the writer has this page, those behind it are staged. Else the writer, done with it,
    // would have the next one when the sweep comes there, and the sweep would follow it page by
    // page at the speed of the disk.
    const auto from = states_.begin() + static_cast<std::ptrdiff_t>(index);
    const auto next = std::find(from, states_.end(), PageState::untaken);
    if (next != states_.end() && !free_slots_.empty()) {
      stage(static_cast<std::size_t>(next - states_.begin()), lock);
    } else {
      const double wait_start = host_seconds();
      changed_.wait(lock);
      report_.waiting_seconds += host_seconds() - wait_start;
    }
  }
  report_.stall_seconds += host_seconds() - start;
}

// Copies an untaken page into a free slot; the writer may continue meanwhile.
void PageSnapshot::stage(std::size_t index, std::unique_lock<std::mutex>& lock) {
  const int slot = free_slots_.back();
  free_slots_.pop_back();
  states_[index] = PageState::being_staged;
  slot_of_page_[index] = slot;
  lock.unlock();
  const StatePage& page = shard_.pages()[index];
  const TensorView target =
      staging_.view().slice(slot * page_bytes_, slot * page_bytes_ + page.state.count());
  Event& copied = slot_copied_[static_cast<std::size_t>(slot)];
  if (on_device(page)) {
    copy_async(page.state, target, optimizer_.update_stream());
    copied.record(optimizer_.update_stream());
  } else {
    std::memcpy(target.data, page.state.data, static_cast<std::size_t>(page.state.count()));
  }
  lock.lock();
  if (states_[index] == PageState::being_staged) {  // else it was given up
    states_[index] = PageState::staged;
    ++report_.staged_pages;
  }
  changed_.notify_all();
}

// On the writer thread: the page's contents of `begin`, in host memory, until `let_go`. None where
// the snapshot was abandoned.
std::optional<TensorView> PageSnapshot::hold(std::size_t index) {
  const StatePage& page = shard_.pages()[index];
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return states_[index] != PageState::being_staged; });
    if (states_[index] == PageState::taken) {
      return std::nullopt;
    }
    if (states_[index] == PageState::staged) {
      const int slot = slot_of_page_[index];
      if (on_device(page)) {
        slot_copied_[static_cast<std::size_t>(slot)].synchronize();
      }
      const Index begin = slot * page_bytes_;
      return staging_.view().slice(begin, begin + page.state.count());
    }
    states_[index] = PageState::being_taken;
  }
  if (!on_device(page)) {
    return page.state;
  }
  use_device(device_);
  Stream stream(device_, StreamPriority::normal, "snapshot");
  const TensorView bounce = bounce_.view().slice(0, page.state.count());
  copy_async(page.state, bounce, stream);
  stream.synchronize();
  return bounce;
}

void PageSnapshot::let_go(std::size_t index) {
  const std::lock_guard lock(mutex_);
  if (states_[index] == PageState::staged) {
    free_slots_.push_back(slot_of_page_[index]);
  }
  states_[index] = PageState::taken;
  changed_.notify_all();
}

void PageSnapshot::take_all(
    const std::function<void(const StatePage&, const TensorView& state)>& take) {
  try {
    for (std::size_t index = 0; index < states_.size(); ++index) {
      if (const std::optional<TensorView> state = hold(index)) {
        take(shard_.pages()[index], *state);
        let_go(index);
      }
    }
  } catch (...) {
    abandon();
    throw;
  }
  const std::lock_guard lock(mutex_);
  active_ = false;
}

}  // namespace tessera
