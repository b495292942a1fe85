#include "optim/shard_state.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/log.h"
#include "kernels/base/parallel.h"
#include "kernels/base/progress.h"
#include "kernels/device/device_backend.h"

namespace tessera {
namespace {

// Decay runs of elements [begin, end) of a unit; what is beyond the unit's count is padding.
std::vector<DecayRun> decay_runs_of(const ParamUnit& unit, Index begin, Index end, bool decay_all) {
  std::vector<DecayRun> runs;
  const auto append = [&runs](Index count, bool decays) {
    if (!runs.empty() && runs.back().decays == decays) {
      runs.back().count += count;
    } else {
      runs.push_back({count, decays});
    }
  };
  for_each_tensor(unit, begin, end, [&](const ParamTensor& tensor, Index first, Index last) {
    append(last - first, tensor.decays || decay_all);
  });
  if (const Index padding = end - std::max(begin, unit.count); padding > 0) {
    append(padding, false);
  }
  return runs;
}

// Bytes of the device for pages that stay where not all do: the streaming buffers take their part
// first. Throws ConfigError where there is no room for those.
std::size_t room_beside_buffers(const PagingOptions& paging, std::size_t page_bytes) {
  if (paging.page_all) {
    return 0;
  }
  const std::size_t limit = paging.max_device_bytes;
  const std::size_t buffer_bytes = page_bytes * static_cast<std::size_t>(paging.buffers);
  if (buffer_bytes > limit) {
    throw ConfigError("--resident-bytes " + std::to_string(limit) + " does not hold " +
                          std::to_string(paging.buffers) + " streaming buffers of " +
                          std::to_string(page_bytes) + " bytes: give at least " +
                          std::to_string(buffer_bytes) + ", or a smaller --page-bytes",
                      TESSERA_HERE);
  }
  return limit - buffer_bytes;
}

}  // namespace

Index page_elements(const StateLayout& layout, std::size_t page_bytes) {
  const auto runs = static_cast<Index>(page_bytes / layout.bytes(kShardAlignment));
  return std::max(Index{1}, runs) * kShardAlignment;
}

bool is_all_resident(const StateLayout& layout, const PagingOptions& paging, Index elements) {
  return !paging.page_all &&
         (paging.max_device_bytes == 0 || layout.bytes(elements) <= paging.max_device_bytes);
}

std::vector<bool> units_on_host(std::span<const std::size_t> unit_bytes, std::size_t host_bytes) {
  std::vector<bool> on_host(unit_bytes.size(), false);
  const std::size_t blocks = unit_bytes.size() < 3 ? 0 : unit_bytes.size() - 2;
  std::size_t held = 0;
  // so few of `blocks` equal ones that they hold it
  std::size_t wanted = 0;
  for (; wanted < blocks && held < host_bytes; ++wanted) {
    held += unit_bytes[1 + wanted];
  }
  held = 0;
  for (std::size_t block = 0; block < blocks; ++block) {
    if ((block + 1) * wanted / blocks > block * wanted / blocks) {
      on_host[1 + block] = true;
      held += unit_bytes[1 + block];
    }
  }
  for (std::size_t unit = 0; unit < unit_bytes.size() && held < host_bytes; ++unit) {
    if (!on_host[unit]) {
      on_host[unit] = true;
      held += unit_bytes[unit];
    }
  }
  return on_host;
}

ShardState::ShardState(const ParamLayout& layout, const ShardStateOptions& options, Arena& arena)
    : layout_(layout),
      options_(options),
      numbers_(options.layout.numbers()),
      device_(arena.device()) {
  TESSERA_REQUIRE(!options.layout.packs_masters() || options.params,
                  "packed masters have their parameters");
  const StateLayout& arrays = options.layout;
  Index page_size = page_elements(arrays, options.paging.page_bytes);
  Index total = 0;
  std::vector<std::size_t> grad_bytes;
  for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
    partial_begin_.push_back(total);
    total += range(unit).shard_size();
    grad_bytes.push_back(static_cast<std::size_t>(range(unit).shard_size()) * sizeof(float));
  }
  grad_on_host_ = units_on_host(grad_bytes, options.host_grad_bytes);
  Index device_grads = 0;
  Index host_grads = 0;
  for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
    Index& end = grad_on_host(unit) ? host_grads : device_grads;
    grad_begin_.push_back(end);
    end += range(unit).shard_size();
  }
  const bool unlimited = is_all_resident(arrays, options.paging, total);
  const std::size_t room =
      unlimited ? 0 : room_beside_buffers(options.paging, arrays.bytes(page_size));
  if (unlimited && options.paging.resident_page_bytes != 0) {
    page_size = page_elements(arrays, options.paging.resident_page_bytes);
  }

  Index resident = 0;
  Index paged = 0;
  for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
    page_begin_.push_back(pages_.size());
    const OptimizerShard shard = range(unit);
    for (Index begin = 0; begin < shard.shard_size(); begin += page_size) {
      const Index count = std::min(page_size, shard.shard_size() - begin);
      // The first pages of the sweep are the resident ones: the next forward pass starts with them.
      const bool stays = unlimited || (paged == 0 && arrays.bytes(resident + count) <= room);
      pages_.push_back({unit,
                        begin,
                        count,
                        {},
                        stays,
                        decay_runs_of(layout.unit(unit), shard.param_start + begin,
                                      shard.param_start + begin + count, options.decay_all)});
      (stays ? resident : paged) += count;
    }
  }
  page_begin_.push_back(pages_.size());

  device_grads_ =
      arena.allocate(MemoryKind::device, DType::f32, {device_grads}, "gradient sums/shard");
  host_grads_ = arena.allocate(MemoryKind::pinned, DType::f32, {host_grads}, "gradient sums/shard");
  partials_ = arena.allocate(MemoryKind::device, DType::f32, {options.group_sums ? total : 0},
                             "gradient sums/groups");
  resident_state_ =
      arena.allocate(MemoryKind::device, DType::u8, {static_cast<Index>(arrays.bytes(resident))},
                     "optimizer state/resident");
  allocate_paged(arena);
  Index at = 0;
  for (StatePage& page : pages_) {
    if (page.resident) {
      const auto bytes = static_cast<Index>(arrays.bytes(page.count));
      page.state = resident_state_.view().slice(at, at + bytes);
      at += bytes;
    }
  }
}

// Pinning takes seconds for each few gigabytes: piece by piece, so that it is seen to continue and
// fails early.
void ShardState::allocate_paged(Arena& arena) {
  constexpr std::size_t kPiece = std::size_t{4} << 30U;
  constexpr std::size_t kWorthSaying = std::size_t{16} << 30U;
  const auto bytes_of = [this](const StatePage& page) { return options_.layout.bytes(page.count); };
  std::size_t all = 0;
  for (const StatePage& page : pages_) {
    all += page.resident ? 0 : bytes_of(page);
  }
  std::size_t done = 0;
  for (std::size_t first = 0; first < pages_.size();) {
    std::size_t bytes = 0;
    std::size_t last = first;
    for (; last < pages_.size() && (bytes == 0 || bytes + bytes_of(pages_[last]) <= kPiece);
         ++last) {
      bytes += pages_[last].resident ? 0 : bytes_of(pages_[last]);
    }
    paged_state_.push_back(arena.allocate(MemoryKind::pinned, DType::u8,
                                          {static_cast<Index>(bytes)}, "optimizer state/paged"));
    Index at = 0;
    for (; first < last; ++first) {
      StatePage& page = pages_[first];
      if (!page.resident) {
        const auto page_bytes = static_cast<Index>(bytes_of(page));
        page.state = paged_state_.back().view().slice(at, at + page_bytes);
        at += page_bytes;
      }
    }
    done += bytes;
    progress().beats.fetch_add(1, std::memory_order_relaxed);
    if (all >= kWorthSaying && !arena.is_dry_run()) {
      log_line(LogLevel::info,
               fmt::format("pinned {:.1f} of {:.1f} GB of optimizer state",
                           static_cast<double>(done) / 1e9, static_cast<double>(all) / 1e9));
    }
  }
}

OptimizerShard ShardState::range(UnitId unit) const {
  return OptimizerShard::for_rank(options_.rank, options_.world_size,
                                  padded_count(layout_.unit(unit).count, options_.world_size));
}

Index ShardState::real_count(UnitId unit) const {
  const OptimizerShard shard = range(unit);
  return std::clamp<Index>(layout_.unit(unit).count - shard.param_start, 0, shard.shard_size());
}

TensorView ShardState::grad(UnitId unit) {
  const Index begin = grad_begin_.at(static_cast<std::size_t>(unit));
  DeviceBuffer& sums = grad_on_host(unit) ? host_grads_ : device_grads_;
  return sums.view().slice(begin, begin + range(unit).shard_size());
}

int ShardState::units_with_host_grads() const {
  return static_cast<int>(std::count(grad_on_host_.begin(), grad_on_host_.end(), true));
}

TensorView ShardState::grad_partial(UnitId unit) {
  if (!options_.group_sums) {
    return {};
  }
  const Index begin = partial_begin_.at(static_cast<std::size_t>(unit));
  return partials_.view().slice(begin, begin + range(unit).shard_size());
}

std::span<StatePage> ShardState::pages(UnitId unit) {
  const std::size_t begin = page_begin_.at(static_cast<std::size_t>(unit));
  const std::size_t end = page_begin_.at(static_cast<std::size_t>(unit) + 1);
  return std::span(pages_).subspan(begin, end - begin);
}

// Those that hold elements of it: neighbours.
std::span<const StatePage> ShardState::pages_of(const ParamTensor& parameter) const {
  const auto holds = [&parameter](const ParamUnit& unit) {
    return &parameter >= unit.tensors.data() &&
           &parameter < unit.tensors.data() + unit.tensors.size();
  };
  const auto units = layout_.units();
  const auto unit =
      static_cast<UnitId>(std::find_if(units.begin(), units.end(), holds) - units.begin());
  TESSERA_REQUIRE(unit < layout_.unit_count(), "a parameter of the shard's own layout");
  const Index start = range(unit).param_start;
  const auto at = static_cast<std::size_t>(unit);
  const auto all =
      std::span(pages_).subspan(page_begin_[at], page_begin_[at + 1] - page_begin_[at]);
  const auto begin = std::find_if(all.begin(), all.end(), [&](const StatePage& page) {
    return start + page.begin + page.count > parameter.offset;
  });
  const auto end = std::find_if(begin, all.end(), [&](const StatePage& page) {
    return start + page.begin >= parameter.offset + parameter.count();
  });
  return {begin, end};
}

bool ShardState::stores(const ParamTensor& parameter) const {
  return !pages_of(parameter).empty();
}

bool ShardState::is_resident(const ParamTensor& parameter) const {
  const std::span<const StatePage> pages = pages_of(parameter);
  return !pages.empty() && std::all_of(pages.begin(), pages.end(),
                                       [](const StatePage& page) { return page.resident; });
}

Index ShardState::resident_count() const {
  Index count = 0;
  for (const ParamUnit& unit : layout_.units()) {
    for (const ParamTensor& tensor : unit.tensors) {
      count += is_resident(tensor) ? 1 : 0;
    }
  }
  return count;
}

std::size_t ShardState::state_bytes() const {
  std::size_t bytes = resident_state_.size_bytes();
  for (const DeviceBuffer& piece : paged_state_) {
    bytes += piece.size_bytes();
  }
  return bytes;
}

std::size_t ShardState::resident_bytes() const {
  return resident_state_.size_bytes();
}

TensorView ShardState::params_of(const StatePage& page) const {
  if (!options_.layout.packs_masters()) {
    return {};
  }
  return options_.params(page.unit).slice(page.begin, page.begin + page.count);
}

std::size_t ShardState::snapshot_bytes() const {
  std::size_t bytes = state_bytes();
  for (const StatePage& page : pages_) {
    const TensorView params = params_of(page);
    bytes += static_cast<std::size_t>(params.count()) * size_in_bytes(params.dtype);
  }
  return bytes;
}

// Where a page stores elements [begin, begin + count) of an array.
StoredNumbers ShardState::stored(const StatePage& page, StateArray array, Index begin,
                                 Index count) const {
  return stored_numbers(options_.layout, array, page.state, params_of(page), page.count, begin,
                        count);
}

// Calls visit(page, first, at, count) for the parts of pages that hold elements
// [begin, begin + count) of the unit's slice: `first` within the page, `at` within the range.
template <typename Visit>
void ShardState::for_each_piece(UnitId unit, Index begin, Index count, Visit visit) const {
  TESSERA_REQUIRE(begin >= 0 && begin + count <= range(unit).shard_size(),
                  "a range of the rank's slice");
  const std::size_t first_page = page_begin_.at(static_cast<std::size_t>(unit));
  const std::size_t last_page = page_begin_.at(static_cast<std::size_t>(unit) + 1);
  for (std::size_t i = first_page; i < last_page; ++i) {
    const StatePage& page = pages_[i];
    const Index first = std::max(begin, page.begin);
    const Index last = std::min(begin + count, page.begin + page.count);
    if (first < last) {
      visit(page, first - page.begin, first - begin, last - first);
    }
  }
}

namespace {

// Memory of the host for a view: the view itself, or `room` in place of what is on a device.
TensorView on_host(const TensorView& view, std::vector<std::byte>& room) {
  if (view.data == nullptr || view.device.kind == DeviceKind::cpu) {
    return view;
  }
  room.resize(static_cast<std::size_t>(view.count()) * size_in_bytes(view.dtype));
  return {room.data(), view.dtype, view.shape, Device{}};
}

// For what is on a device, on this thread; none where state is in memory of the host alone.
std::optional<Stream> state_stream(Device device) {
  if (device.kind == DeviceKind::cpu) {
    return std::nullopt;
  }
  use_device(device);
  return Stream(device, StreamPriority::normal, "state");
}

// Stored numbers, their part on a device in memory of the host.
struct HostNumbers {
  explicit HostNumbers(const StoredNumbers& of)
      : stored(of),
        host{of.spec, on_host(of.values, values_room), on_host(of.params, params_room),
             on_host(of.scales, scales_room)} {}
  // `stream` is set where something is on a device.
  void load(std::optional<Stream>& stream) const { move(stored, host, stream); }
  void store(std::optional<Stream>& stream) const { move(host, stored, stream); }
  static void move(const StoredNumbers& from, const StoredNumbers& to,
                   std::optional<Stream>& stream) {
    for (const TensorView StoredNumbers::*part :
         {&StoredNumbers::values, &StoredNumbers::params, &StoredNumbers::scales}) {
      if ((from.*part).data != (to.*part).data) {
        copy_async(from.*part, to.*part, stream.value());
      }
    }
    if (stream) {
      stream->synchronize();
    }
  }
  std::vector<std::byte> values_room;
  std::vector<std::byte> params_room;
  std::vector<std::byte> scales_room;
  StoredNumbers stored;
  StoredNumbers host;
};

}  // namespace

void ShardState::read(UnitId unit, StateArray array, Index begin, TensorView values) const {
  std::optional<Stream> stream = state_stream(device_);
  for_each_piece(
      unit, begin, values.count(), [&](const StatePage& page, Index first, Index at, Index count) {
        const HostNumbers numbers(stored(page, array, first, count));
        numbers.load(stream);
        decode(numbers.host, {data_as<float>(values) + at, static_cast<std::size_t>(count)});
      });
}

void ShardState::write(UnitId unit, StateArray array, Index begin, ConstTensorView values) {
  std::optional<Stream> stream = state_stream(device_);
  for_each_piece(
      unit, begin, values.count(), [&](const StatePage& page, Index first, Index at, Index count) {
        const HostNumbers numbers(stored(page, array, first, count));
        encode({data_as<float>(values) + at, static_cast<std::size_t>(count)}, numbers.host);
        numbers.store(stream);
      });
}

namespace {

// All bytes of a page but those of its master weights, or what stands for them.
void zero_all_but(const TensorView& masters, const TensorView& page,
                  std::optional<Stream>& stream) {
  const Index begin = static_cast<std::byte*>(masters.data) - static_cast<std::byte*>(page.data);
  const Index end = begin + masters.count() * static_cast<Index>(size_in_bytes(masters.dtype));
  for (const TensorView& part : {page.slice(0, begin), page.slice(end, page.count())}) {
    if (page.device.kind == DeviceKind::cuda) {
      zero_async(part, stream.value());
    } else {
      std::memset(part.data, 0, static_cast<std::size_t>(part.count()));
    }
  }
}

}  // namespace

void ShardState::initialize(const std::function<void(UnitId, Index, std::span<float>)>& values,
                            int threads) {
  constexpr Index kPiece = Index{1} << 19U;  // elements that a thread takes at a time
  struct Piece {
    StatePage* page;
    Index begin;  // within the page
    Index count;
  };
  std::vector<Piece> pieces;
  for (StatePage& page : pages_) {
    for (Index begin = 0; begin < page.count; begin += kPiece) {
      pieces.push_back({&page, begin, std::min(kPiece, page.count - begin)});
    }
  }
  const auto fill = [&](const Piece& piece, std::vector<float>& host,
                        std::optional<Stream>& stream) {
    const StatePage& page = *piece.page;
    const StateArray master = options_.layout.storage_of(StateArray::master).array;
    const bool is_plain = master == StateArray::master && page.state.device.kind == DeviceKind::cpu;
    if (!stream) {
      stream = state_stream(device_);
    }
    if (piece.begin == 0) {
      zero_all_but(options_.layout.values(page.state, page.count, master), page.state, stream);
    }
    const Index begin = range(page.unit).param_start + page.begin + piece.begin;
    const StoredNumbers target = stored(page, StateArray::master, piece.begin, piece.count);
    if (is_plain) {
      const std::span fresh(data_as<float>(target.values), static_cast<std::size_t>(piece.count));
      std::ranges::fill(fresh, 0.0F);
      values(page.unit, begin, fresh);
    } else {
      host.assign(static_cast<std::size_t>(piece.count), 0.0F);
      values(page.unit, begin, host);
      const HostNumbers numbers(target);
      encode(host, numbers.host);
      numbers.store(stream);
    }
    progress().beats.fetch_add(1, std::memory_order_relaxed);  // a large model takes a while
  };
  share_among_threads(std::ssize(pieces), threads, [&] {
    return [&, host = std::vector<float>(), stream = std::optional<Stream>()](Index i) mutable {
      fill(pieces[static_cast<std::size_t>(i)], host, stream);
    };
  });
}

}  // namespace tessera
