#include "optim/page_sweep.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/trace.h"

namespace tessera {
PageSweep::PageSweep(const UpdateRule& rule, ShardState& shard, const SweepStreams& streams,
                     Arena& arena)
    : rule_(rule),
      shard_(shard),
      streams_(streams),
      begun_(arena.device(), "sweep.begun"),
      ended_(arena.device(), "sweep.ended") {
  TESSERA_REQUIRE(rule.layout() == shard.state_layout(), "pages with the arrays of this optimizer");
  Index largest = 0;
  for (const StatePage& page : shard.pages()) {
    if (!page.resident) {
      paged_.push_back(&page);
      largest = std::max(largest, page.state.count());
    }
  }
  TESSERA_REQUIRE(shard.paging().buffers >= 2, "two page buffers or more");
  const std::size_t buffers =
      std::min(paged_.size(), static_cast<std::size_t>(shard.paging().buffers));
  for (std::size_t i = 0; i < buffers; ++i) {
    buffers_.push_back(
        {arena.allocate(MemoryKind::device, DType::u8, {largest}, "optimizer state/page buffers"),
         Event(arena.device(), "page.loaded"), Event(arena.device(), "page.updated"),
         Event(arena.device(), "page.stored")});
  }
  Index page_size = 0;
  for (const StatePage& page : shard.pages()) {
    if (shard.grad_on_host(page.unit)) {
      host_grads_.push_back(&page);
      page_size = std::max(page_size, page.count);
    }
  }
  if (!host_grads_.empty()) {
    for (int i = 0; i < shard.paging().buffers; ++i) {
      grad_buffers_.push_back(
          {arena.allocate(MemoryKind::device, DType::f32, {page_size}, "gradient staging/update"),
           Event(arena.device(), "update grad.loaded"), Event(arena.device(), "update grad.used")});
    }
  }
}

PageSweep::~PageSweep() {
  try {
    streams_.page_in.synchronize();
  } catch (...) {  // the device is lost, and whoever used it says so
    return;
  }
}

// Gradients that are stored on the host come with their pages, resident ones' too.
void PageSweep::load_grads_up_to(std::size_t last) {
  for (; grads_loaded_ <= last && grads_loaded_ < host_grads_.size(); ++grads_loaded_) {
    const StatePage& page = *host_grads_[grads_loaded_];
    GradBuffer& buffer = grad_buffers_[grads_loaded_ % grad_buffers_.size()];
    streams_.page_in.wait(buffer.used);
    copy_async(shard_.grad(page.unit).slice(page.begin, page.begin + page.count),
               buffer.grad.view().slice(0, page.count), streams_.page_in);
    buffer.loaded.record(streams_.page_in);
  }
}

// [count] f32 on the device, for the next page of the sweep.
TensorView PageSweep::take_grad(const StatePage& page) {
  if (!shard_.grad_on_host(page.unit)) {
    return shard_.grad(page.unit).slice(page.begin, page.begin + page.count);
  }
  load_grads_up_to(grads_used_ + grad_buffers_.size() - 1);
  GradBuffer& buffer = grad_buffers_[grads_used_ % grad_buffers_.size()];
  streams_.update.wait(buffer.loaded);
  return buffer.grad.view().slice(0, page.count);
}

void PageSweep::give_grad_back(const StatePage& page) {
  if (shard_.grad_on_host(page.unit)) {
    grad_buffers_[grads_used_ % grad_buffers_.size()].used.record(streams_.update);
    ++grads_used_;
  }
}

void PageSweep::prefetch() {
  if (prefetched_ || sweep_ == Sweep::under_way) {
    return;
  }
  prefetched_ = true;
  // The ring continues where the last sweep ended. A page's buffer was last used by the page that
  // is `buffers` places before it, and its own write-back is at least as far back, because
  // there are no more buffers than pages: waiting for the buffer's `stored` waits for both.
  ring_begin_ = buffers_.empty() ? 0 : (ring_begin_ + done_) % buffers_.size();
  loaded_ = 0;
  done_ = 0;
  bytes_in_ = 0;
  bytes_out_ = 0;
  if (!buffers_.empty()) {
    load_pages_up_to(buffers_.size() - 1);
  }
}

std::string_view PageSweep::name_of(const StatePage& page) const {
  return shard_.layout().unit(page.unit).name;
}

void PageSweep::begin_sweep() {
  TESSERA_REQUIRE(sweep_ != Sweep::under_way, "the last optimizer pass is complete");
  prefetch();
  prefetched_ = false;
  sweep_ = Sweep::under_way;
  grads_loaded_ = 0;
  grads_used_ = 0;
  begun_.record(streams_.update);
}

void PageSweep::end_sweep_after(UnitId unit) {
  if (unit + 1 == shard_.layout().unit_count()) {
    sweep_ = Sweep::queued;
    last_bytes_in_ = bytes_in_;
    last_bytes_out_ = bytes_out_;
    ended_.record(paged_.empty() ? streams_.update : streams_.page_out);
  }
}

void PageSweep::load_pages_up_to(std::size_t last) {
  for (; loaded_ <= last && loaded_ < paged_.size(); ++loaded_) {
    const StatePage& page = *paged_[loaded_];
    Buffer& buffer = buffer_of(loaded_);
    streams_.page_in.wait(buffer.stored);
    const TraceRange moving({TraceCategory::paging, "page in", name_of(page)}, streams_.page_in);
    copy_async(page.state, buffer.state.view().slice(0, page.state.count()), streams_.page_in);
    buffer.loaded.record(streams_.page_in);
    bytes_in_ += static_cast<std::size_t>(page.state.count());
  }
}

template <typename Work>
void PageSweep::sweep_unit(UnitId unit, StoreBack store, const Work& work) {
  for (const StatePage& page : shard_.pages(unit)) {
    if (store == StoreBack::yes && before_change_) {
      before_change_(page);
    }
    if (page.resident) {
      const TraceRange working({TraceCategory::compute, "update", name_of(page)}, streams_.update);
      work(page, page.state);
      continue;
    }
    TESSERA_REQUIRE(done_ < paged_.size() && paged_[done_] == &page, "units in ascending order");
    load_pages_up_to(done_ + buffers_.size() - 1);
    Buffer& buffer = buffer_of(done_);
    const TensorView state = buffer.state.view().slice(0, page.state.count());
    streams_.update.wait(buffer.loaded);
    {
      const TraceRange working({TraceCategory::compute, "update", name_of(page)}, streams_.update);
      work(page, state);
    }
    buffer.updated.record(streams_.update);
    streams_.page_out.wait(buffer.updated);
    if (store == StoreBack::yes) {
      const TraceRange moving({TraceCategory::paging, "page out", name_of(page)},
                              streams_.page_out);
      copy_async(state, page.state, streams_.page_out);
      bytes_out_ += static_cast<std::size_t>(page.state.count());
    }
    buffer.stored.record(streams_.page_out);
    ++done_;
  }
  end_sweep_after(unit);
}

void PageSweep::update(UnitId unit, const UpdateStep& step, TensorView params_out) {
  sweep_unit(unit, StoreBack::yes, [&](const StatePage& page, const TensorView& state) {
    rule_.queue({.unit = page.unit,
                 .first = shard_.range(page.unit).param_start + page.begin,
                 .count = page.count,
                 .state = state,
                 .grad = take_grad(page),
                 .params = params_out.slice(page.begin, page.begin + page.count),
                 .decay_runs = page.decay_runs},
                step, streams_.update);
    give_grad_back(page);
  });
}

void PageSweep::write_params(UnitId unit, TensorView params_out) {
  sweep_unit(unit, StoreBack::no, [&](const StatePage& page, const TensorView& state) {
    rule_.queue_params({.unit = page.unit,
                        .first = shard_.range(page.unit).param_start + page.begin,
                        .count = page.count,
                        .state = state,
                        .grad = {},
                        .params = params_out.slice(page.begin, page.begin + page.count),
                        .decay_runs = page.decay_runs},
                       streams_.update);
  });
}

void PageSweep::set_before_change(std::function<void(const StatePage&)> before_change) {
  before_change_ = std::move(before_change);
}

void PageSweep::synchronize() {
  streams_.page_in.synchronize();
  streams_.update.synchronize();
  streams_.page_out.synchronize();
}

PagingReport PageSweep::report() const {
  PagingReport report;
  report.pages = static_cast<Index>(shard_.pages().size());
  report.resident_pages = report.pages - static_cast<Index>(paged_.size());
  report.device_bytes = shard_.resident_bytes();
  for (const Buffer& buffer : buffers_) {
    report.device_bytes += buffer.state.size_bytes();
  }
  if (sweep_ == Sweep::queued) {
    report.bytes_in = last_bytes_in_;
    report.bytes_out = last_bytes_out_;
    ended_.synchronize();
    report.seconds = ended_.seconds_since(begun_);
  }
  return report;
}

}  // namespace tessera
