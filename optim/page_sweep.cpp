#include "optim/page_sweep.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/trace.h"

namespace tessera {
PageSweep::PageSweep(const UpdateRule& rule, ShardState& shard, const SweepStreams& streams,
                     Arena& arena, Orthogonalizer* orthogonalizer)
    : rule_(rule),
      shard_(shard),
      streams_(streams),
      orthogonalizer_(orthogonalizer),
      begun_(arena.device(), "sweep.begun"),
      ended_(arena.device(), "sweep.ended") {
  TESSERA_REQUIRE(rule.layout() == shard.state_layout(), "pages with the arrays of this optimizer");
  TESSERA_REQUIRE((rule.matrix_layout().size() > 0) == (orthogonalizer != nullptr),
                  "what orthogonalises, for a rule that needs it");
  Index largest = 0;
  std::size_t moving = 0;
  for (const StatePage& page : shard.pages()) {
    if (!page.resident) {
      ++moving;
      largest = std::max(largest, page.state.count());
    }
  }
  for (UnitId unit = 0; unit < shard.layout().unit_count(); ++unit) {
    add_visits(unit, Pass::first);
    add_visits(unit, Pass::second);
  }
  resident_pages_ = std::ssize(shard.pages()) - static_cast<Index>(moving);
  TESSERA_REQUIRE(shard.paging().buffers >= 2, "two page buffers or more");
  // With more buffers the next sweep would read bytes that are visited twice before the second visit
  // has written them back (prefetch).
  std::size_t apart = 0;
  for (std::size_t i = 0; i < visits_.size(); ++i) {
    apart = std::max(apart, visits_[i].after == 0 ? 0 : i + 1 - visits_[i].after);
  }
  const std::size_t buffers =
      std::min(visits_.size() - apart, static_cast<std::size_t>(shard.paging().buffers));
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

bool PageSweep::has_second(const StatePage& page) const {
  return page.layout == rule_.matrix_layout() || !page.matrix_runs.empty();
}

// The first pass takes what follows the master weights, and of pages with elements of other tensors
// all; the second the master weights.
void PageSweep::add_visits(UnitId unit, Pass pass) {
  const std::span<StatePage> pages = shard_.pages(unit);
  const std::size_t before = visits_.size();
  for (const StatePage& page : pages) {
    if (page.resident || (pass == Pass::second && !has_second(page))) {
      continue;
    }
    const Index all = page.state.count();
    const auto masters = static_cast<Index>(page.layout.offset(1, page.count));
    const bool of_matrices = page.layout == rule_.matrix_layout();
    if (pass == Pass::first) {
      visits_.push_back({&page, of_matrices ? masters : 0, all});
      continue;
    }
    std::size_t after = 0;
    for (std::size_t i = 0; i < before && !of_matrices; ++i) {
      after = visits_[i].page == &page ? i + 1 : after;
    }
    visits_.push_back({&page, 0, masters, after});
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
  // The ring continues where the last sweep ended. A visit's buffer was last used by the visit that
  // is `buffers` places before it, and the last write-back of the same bytes is at least as far
  // back, because there are no more buffers: waiting for the buffer's `stored` waits for both.
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
    ended_.record(visits_.empty() ? streams_.update : streams_.page_out);
  }
}

void PageSweep::load_pages_up_to(std::size_t last) {
  for (; loaded_ <= last && loaded_ < visits_.size(); ++loaded_) {
    const Visit& visit = visits_[loaded_];
    if (visit.after > done_) {
      return;  // what it reads is still to be written
    }
    Buffer& buffer = buffer_of(loaded_);
    streams_.page_in.wait(buffer.stored);
    if (visit.after > 0) {
      streams_.page_in.wait(buffer_of(visit.after - 1).stored);
    }
    const TraceRange moving({TraceCategory::paging, "page in", name_of(*visit.page)},
                            streams_.page_in);
    copy_async(visit.part_of(visit.page->state), visit.part_of(buffer.state.view()),
               streams_.page_in);
    buffer.loaded.record(streams_.page_in);
    bytes_in_ += static_cast<std::size_t>(visit.end - visit.begin);
  }
}

template <typename Work>
void PageSweep::sweep_unit(UnitId unit, Pass pass, StoreBack store, const Work& work) {
  for (const StatePage& page : shard_.pages(unit)) {
    if (pass == Pass::second && !has_second(page)) {
      continue;
    }
    if (store == StoreBack::yes && before_change_) {
      before_change_(page);
    }
    if (page.resident) {
      const TraceRange working({TraceCategory::compute, "update", name_of(page)}, streams_.update);
      work(page, page.state);
      continue;
    }
    TESSERA_REQUIRE(done_ < visits_.size() && visits_[done_].page == &page,
                    "units in ascending order");
    const Visit& visit = visits_[done_];
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
      copy_async(visit.part_of(state), visit.part_of(page.state), streams_.page_out);
      bytes_out_ += static_cast<std::size_t>(visit.end - visit.begin);
    }
    buffer.stored.record(streams_.page_out);
    ++done_;
  }
}

PageArgs PageSweep::args_of(const StatePage& page, const TensorView& state,
                            const TensorView& params_out) const {
  return {.unit = page.unit,
          .first = shard_.range(page.unit).param_start + page.begin,
          .count = page.count,
          .state = state,
          .grad = {},
          .params = params_out.slice(page.begin, page.begin + page.count),
          .decay_runs = page.decay_runs,
          .layout = page.layout};
}

// The page's runs of matrices with their directions, until the next call.
std::span<const MatrixRun> PageSweep::runs_of(const StatePage& page, Pass pass) {
  const Index first = shard_.range(page.unit).param_start + page.begin;
  runs_ = page.matrix_runs;
  for (MatrixRun& run : runs_) {
    run.direction =
        pass == Pass::first
            ? orthogonalizer_->direction(page.unit, first + run.begin, first + run.end)
            : orthogonalizer_->orthogonal(page.unit, first + run.begin, first + run.end);
  }
  return runs_;
}

void PageSweep::update(UnitId unit, const UpdateStep& step, TensorView params_out) {
  sweep_unit(unit, Pass::first, StoreBack::yes,
             [&](const StatePage& page, const TensorView& state) {
               PageArgs args = args_of(page, state, params_out);
               args.grad = take_grad(page);
               args.matrix_runs = runs_of(page, Pass::first);
               rule_.queue(args, step, streams_.update);
               give_grad_back(page);
             });
  if (orthogonalizer_ != nullptr && orthogonalizer_->has_matrices(unit)) {
    orthogonalizer_->orthogonalize(unit, streams_.update);
    sweep_unit(unit, Pass::second, StoreBack::yes,
               [&](const StatePage& page, const TensorView& state) {
                 PageArgs args = args_of(page, state, params_out);
                 args.matrix_runs = runs_of(page, Pass::second);
                 rule_.queue_matrices(args, step, streams_.update);
               });
  }
  end_sweep_after(unit);
}

void PageSweep::write_params(UnitId unit, TensorView params_out) {
  for (const Pass pass : {Pass::first, Pass::second}) {
    sweep_unit(unit, pass, StoreBack::no, [&](const StatePage& page, const TensorView& state) {
      if (pass == Pass::second || !has_second(page)) {
        rule_.queue_params(args_of(page, state, params_out), streams_.update);
      }
    });
  }
  end_sweep_after(unit);
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
  report.resident_pages = resident_pages_;
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
