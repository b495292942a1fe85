#include "optim/paged_adamw.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/device/error.h"
#include "kernels/device/trace.h"

namespace tessera {
namespace {

std::size_t state_bytes(const StatePage& page) {
  return static_cast<std::size_t>(page.state.count()) * sizeof(float);
}

TensorView array_of(const TensorView& state, Index count, StateArray array) {
  const Index begin = static_cast<Index>(array) * count;
  return state.slice(begin, begin + count);
}

}  // namespace

PagedAdamW::PagedAdamW(const KernelTable& kernels, const AdamWOptions& options, ShardState& shard,
                       const SweepStreams& streams, Arena& arena)
    : kernels_(kernels),
      options_(options),
      shard_(shard),
      streams_(streams),
      begun_(arena.device(), "sweep.begun"),
      ended_(arena.device(), "sweep.ended") {
  Index largest = 0;
  for (const StatePage& page : shard.pages()) {
    if (!page.resident) {
      paged_.push_back(&page);
      largest = std::max(largest, page.count);
    }
  }
  TESSERA_REQUIRE(shard.paging().buffers >= 2, "two page buffers or more");
  const std::size_t buffers =
      std::min(paged_.size(), static_cast<std::size_t>(shard.paging().buffers));
  for (std::size_t i = 0; i < buffers; ++i) {
    buffers_.push_back({arena.allocate(MemoryKind::device, DType::f32, {3, largest},
                                       "optimizer state/page buffers"),
                        Event(arena.device(), "page.loaded"), Event(arena.device(), "page.updated"),
                        Event(arena.device(), "page.stored")});
  }
  if (shard.grads_on_host()) {
    Index page_size = 0;
    for (const StatePage& page : shard.pages()) {
      page_size = std::max(page_size, page.count);
    }
    for (int i = 0; i < shard.paging().buffers; ++i) {
      grad_buffers_.push_back(
          {arena.allocate(MemoryKind::device, DType::f32, {page_size}, "gradient staging/update"),
           Event(arena.device(), "update grad.loaded"), Event(arena.device(), "update grad.used")});
    }
  }
}

// Gradients that lie on the host come with their pages, resident ones' too.
void PagedAdamW::load_grads_up_to(std::size_t last) {
  const std::span<const StatePage> pages = std::as_const(shard_).pages();
  for (; grads_loaded_ <= last && grads_loaded_ < pages.size(); ++grads_loaded_) {
    const StatePage& page = pages[grads_loaded_];
    GradBuffer& buffer = grad_buffers_[grads_loaded_ % grad_buffers_.size()];
    streams_.page_in.wait(buffer.used);
    copy_async(shard_.grad(page.unit).slice(page.begin, page.begin + page.count),
               buffer.grad.view().slice(0, page.count), streams_.page_in);
    buffer.loaded.record(streams_.page_in);
  }
}

// [count] f32 on the device, for the next page of the sweep.
TensorView PagedAdamW::take_grad(const StatePage& page) {
  if (grad_buffers_.empty()) {
    return shard_.grad(page.unit).slice(page.begin, page.begin + page.count);
  }
  load_grads_up_to(grads_used_ + grad_buffers_.size() - 1);
  GradBuffer& buffer = grad_buffers_[grads_used_ % grad_buffers_.size()];
  streams_.update.wait(buffer.loaded);
  return buffer.grad.view().slice(0, page.count);
}

void PagedAdamW::give_grad_back() {
  if (!grad_buffers_.empty()) {
    grad_buffers_[grads_used_ % grad_buffers_.size()].used.record(streams_.update);
    ++grads_used_;
  }
}

void PagedAdamW::prefetch() {
  if (prefetched_ || sweep_ == Sweep::under_way) {
    return;
  }
  prefetched_ = true;
  // The ring goes on where the last sweep ended. A page's buffer was last used by the page that
  // lies `buffers` places before it, and its own write-back lies at least as far back, because
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

std::string_view PagedAdamW::name_of(const StatePage& page) const {
  return shard_.layout().unit(page.unit).name;
}

void PagedAdamW::begin_sweep() {
  TESSERA_REQUIRE(sweep_ != Sweep::under_way, "the last sweep is complete");
  prefetch();
  prefetched_ = false;
  sweep_ = Sweep::under_way;
  grads_loaded_ = 0;
  grads_used_ = 0;
  begun_.record(streams_.update);
}

void PagedAdamW::end_sweep_after(UnitId unit) {
  if (unit + 1 == shard_.layout().unit_count()) {
    sweep_ = Sweep::queued;
    last_bytes_in_ = bytes_in_;
    last_bytes_out_ = bytes_out_;
    ended_.record(paged_.empty() ? streams_.update : streams_.page_out);
  }
}

void PagedAdamW::load_pages_up_to(std::size_t last) {
  for (; loaded_ <= last && loaded_ < paged_.size(); ++loaded_) {
    const StatePage& page = *paged_[loaded_];
    Buffer& buffer = buffer_of(loaded_);
    streams_.page_in.wait(buffer.stored);
    const TraceRange moving({TraceCategory::paging, "page in", name_of(page)}, streams_.page_in);
    copy_async(page.state, buffer.state.view().slice(0, page.state.count()), streams_.page_in);
    buffer.loaded.record(streams_.page_in);
    bytes_in_ += state_bytes(page);
  }
}

// Calls work(page, state) for every page of the unit, with `state` [3, count] on the device.
template <typename Work>
void PagedAdamW::sweep_unit(UnitId unit, StoreBack store, const Work& work) {
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
      bytes_out_ += state_bytes(page);
    }
    buffer.stored.record(streams_.page_out);
    ++done_;
  }
  end_sweep_after(unit);
}

void PagedAdamW::update(UnitId unit, const AdamWStep& step, TensorView params_out) {
  const auto t = static_cast<double>(step.updates);
  sweep_unit(unit, StoreBack::yes, [&](const StatePage& page, const TensorView& state) {
    const TensorView grad = take_grad(page);
    Index begin = 0;
    for (const DecayRun& run : page.decay_runs) {
      const Index end = begin + run.count;
      const auto run_of = [&](StateArray array) {
        return array_of(state, page.count, array).slice(begin, end);
      };
      kernels_.adamw({.master = run_of(StateArray::master),
                      .m = run_of(StateArray::first_moment),
                      .v = run_of(StateArray::second_moment),
                      .grad = grad.slice(begin, end),
                      .param = params_out.slice(page.begin + begin, page.begin + end),
                      .lr = static_cast<float>(step.lr),
                      .beta1 = static_cast<float>(options_.beta1),
                      .beta2 = static_cast<float>(options_.beta2),
                      .bias_correction1 = static_cast<float>(1 - std::pow(options_.beta1, t)),
                      .bias_correction2 = static_cast<float>(1 - std::pow(options_.beta2, t)),
                      .eps = static_cast<float>(options_.eps),
                      .decay = run.decays ? static_cast<float>(options_.decay) : 0.0F,
                      .grad_scale = static_cast<float>(step.grad_scale)},
                     streams_.update);
      begin = end;
    }
    give_grad_back();
  });
}

void PagedAdamW::write_params(UnitId unit, TensorView params_out) {
  sweep_unit(unit, StoreBack::no, [&](const StatePage& page, const TensorView& state) {
    kernels_.cast_rows({.from = array_of(state, page.count, StateArray::master),
                        .to = params_out.slice(page.begin, page.begin + page.count),
                        .rows = 1,
                        .columns = page.count,
                        .from_stride = page.count,
                        .to_stride = page.count},
                       streams_.update);
  });
}

void PagedAdamW::set_before_change(std::function<void(const StatePage&)> before_change) {
  before_change_ = std::move(before_change);
}

void PagedAdamW::synchronize() {
  streams_.page_in.synchronize();
  streams_.update.synchronize();
  streams_.page_out.synchronize();
}

PagingReport PagedAdamW::report() const {
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
