#include "runtime/run/page_snapshot.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/device/device_backend.h"

namespace tessera {
namespace {

Index bytes_of(const TensorView& view) {
  return view.count() * static_cast<Index>(size_in_bytes(view.dtype));
}

Index largest_page(const ShardState& shard) {
  Index largest = 0;
  for (const StatePage& page : shard.pages()) {
    largest = std::max(largest, page.state.count() + bytes_of(shard.params_of(page)));
  }
  return largest;
}

bool on_device(const TensorView& view) {
  return view.device.kind == DeviceKind::cuda;
}

// Those that are on a device, in the stream; the others at once.
void copy_parts(const PageContents& from, const PageContents& to, Stream& stream) {
  for (const TensorView PageContents::*part : {&PageContents::state, &PageContents::params}) {
    if (on_device(from.*part)) {
      copy_async(from.*part, to.*part, stream);
    } else if ((from.*part).count() > 0) {
      std::memcpy((to.*part).data, (from.*part).data,
                  static_cast<std::size_t>(bytes_of(from.*part)));
    }
  }
}

bool on_device(const PageContents& page) {
  return on_device(page.state) || on_device(page.params);
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
      slot_bytes == 0 ? 0 : std::clamp<std::size_t>(staging_bytes / slot_bytes, 1, pages);
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

PageContents PageSnapshot::contents(const StatePage& page) const {
  return {page.state, shard_.params_of(page)};
}

// The same in `room`, of page_bytes_ bytes on the host.
PageContents PageSnapshot::place_in(const TensorView& room, const StatePage& page) const {
  const Index state_bytes = page.state.count();
  PageContents place = {room.slice(0, state_bytes), shard_.params_of(page)};
  if (place.params.count() > 0) {
    place.params.data = room.slice(state_bytes, room.count()).data;
    place.params.device = room.device;
  }
  return place;
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
  const TensorView room = staging_.view().slice(slot * page_bytes_, (slot + 1) * page_bytes_);
  const PageContents from = contents(page);
  copy_parts(from, place_in(room, page), optimizer_.update_stream());
  if (on_device(from)) {
    slot_copied_[static_cast<std::size_t>(slot)].record(optimizer_.update_stream());
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
std::optional<PageContents> PageSnapshot::hold(std::size_t index) {
  const StatePage& page = shard_.pages()[index];
  const PageContents now = contents(page);
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return states_[index] != PageState::being_staged; });
    if (states_[index] == PageState::taken) {
      return std::nullopt;
    }
    if (states_[index] == PageState::staged) {
      const int slot = slot_of_page_[index];
      if (on_device(now)) {
        slot_copied_[static_cast<std::size_t>(slot)].synchronize();
      }
      const Index begin = slot * page_bytes_;
      return place_in(staging_.view().slice(begin, begin + page_bytes_), page);
    }
    states_[index] = PageState::being_taken;
  }
  if (!on_device(now)) {
    return now;
  }
  use_device(device_);
  Stream stream(device_, StreamPriority::normal, "snapshot");
  const PageContents bounce = place_in(bounce_.view().slice(0, page_bytes_), page);
  copy_parts(now, bounce, stream);
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
    const std::function<void(const StatePage&, const PageContents&)>& take) {
  try {
    for (std::size_t index = 0; index < states_.size(); ++index) {
      if (const std::optional<PageContents> contents = hold(index)) {
        take(shard_.pages()[index], *contents);
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
