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
#include "kernels/base/round_up.h"
#include "kernels/device/device_backend.h"

namespace tessera {
namespace {

// Decay runs of elements [begin, end) of a unit; what is beyond the unit's count is padding. Hidden
// matrices have runs of their own where they are `orthogonalized`.
std::vector<DecayRun> decay_runs_of(const ParamUnit& unit, Index begin, Index end, bool decay_all,
                                    bool orthogonalized) {
  std::vector<DecayRun> runs;
  const auto append = [&runs](Index count, bool decays, bool in_matrix) {
    if (!runs.empty() && runs.back().decays == decays && runs.back().in_matrix == in_matrix) {
      runs.back().count += count;
    } else {
      runs.push_back({count, decays, in_matrix});
    }
  };
  for_each_tensor(unit, begin, end, [&](const ParamTensor& tensor, Index first, Index last) {
    append(last - first, tensor.decays || decay_all, orthogonalized && !tensor.matrix_rows.empty());
  });
  if (const Index padding = end - std::max(begin, unit.count); padding > 0) {
    append(padding, false, false);
  }
  return runs;
}

// Runs of hidden matrices among elements [begin, end) of a unit, whose first is element 0 of a page.
std::vector<MatrixRun> matrix_runs_of(const ParamUnit& unit, Index begin, Index end) {
  std::vector<MatrixRun> runs;
  for (const HiddenMatrix& matrix : hidden_matrices(unit)) {
    const Index first = std::max(begin, matrix.offset);
    const Index last = std::min(end, matrix.offset + matrix.count());
    if (first < last) {
      runs.push_back({first - begin, last - begin, matrix.rows, matrix.columns, {}});
    }
  }
  return runs;
}

// Calls visit(begin, end, in_matrices) for runs of a rank's slice of a unit, multiples of 1024 that
// cover it in their order: elements of hidden matrices and padding alone, or those 1024 that hold
// some of other tensors. All of the latter where the optimizer has no layout for matrices.
template <typename Visit>
void for_each_kind(const ParamUnit& unit, const OptimizerShard& shard, bool has_matrix_layout,
                   const Visit& visit) {
  const Index size = shard.shard_size();
  const bool splits =
      has_matrix_layout && std::ranges::any_of(unit.tensors, [](const ParamTensor& tensor) {
        return !tensor.matrix_rows.empty();
      });
  Index others_begin = 0;  // of a run with elements of other tensors
  Index others_end = splits ? 0 : size;
  Index done = 0;
  const auto emit = [&](Index from, Index to, bool in_matrices) {
    if (from < to) {
      visit(from, to, in_matrices);
    }
  };
  const auto emit_others = [&] {
    emit(done, others_begin, true);
    emit(others_begin, others_end, false);
    done = std::max(done, others_end);
  };
  for (const ParamTensor& tensor : unit.tensors) {
    if (!splits || !tensor.matrix_rows.empty()) {
      continue;
    }
    const Index first = std::clamp<Index>(tensor.offset - shard.param_start, 0, size);
    const Index last =
        std::clamp<Index>(tensor.offset + tensor.count() - shard.param_start, 0, size);
    if (first == last) {
      continue;
    }
    const Index begin = first / kShardAlignment * kShardAlignment;
    if (begin > others_end) {
      emit_others();
      others_begin = begin;
    } else if (others_begin == others_end) {
      others_begin = begin;
    }
    others_end = std::max(others_end, round_up(last, kShardAlignment));
  }
  emit_others();
  emit(done, size, true);
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

namespace {

// Of a page as it is cut where not all of them stay; 0 for no layout.
std::size_t page_bytes_of(const StateLayout& arrays, const PagingOptions& paging) {
  return arrays.size() == 0 ? 0 : arrays.bytes(page_elements(arrays, paging.page_bytes));
}

}  // namespace

std::size_t shard_state_bytes(const ParamLayout& layout, const StateLayout& arrays,
                              const StateLayout& matrix_arrays, int rank, int world_size) {
  std::size_t bytes = 0;
  for (const ParamUnit& unit : layout.units()) {
    const OptimizerShard shard =
        OptimizerShard::for_rank(rank, world_size, padded_count(unit.count, world_size));
    for_each_kind(unit, shard, matrix_arrays.size() > 0,
                  [&](Index begin, Index end, bool in_matrices) {
                    bytes += (in_matrices ? matrix_arrays : arrays).bytes(end - begin);
                  });
  }
  return bytes;
}

std::size_t largest_state_bytes(const ParamLayout& layout, const StateLayout& arrays,
                                const StateLayout& matrix_arrays, int world_size) {
  std::size_t largest = 0;
  const int ranks = matrix_arrays.size() > 0 ? world_size : 1;  // else all have the same
  for (int rank = 0; rank < ranks; ++rank) {
    largest = std::max(largest, shard_state_bytes(layout, arrays, matrix_arrays, rank, world_size));
  }
  return largest;
}

bool is_all_resident(const PagingOptions& paging, std::size_t state_bytes) {
  return !paging.page_all &&
         (paging.max_device_bytes == 0 || state_bytes <= paging.max_device_bytes);
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
  const PagingOptions& paging = options.paging;
  const bool unlimited = is_all_resident(
      paging,
      largest_state_bytes(layout, options.layout, options.matrix_layout, options.world_size));
  std::size_t room =
      unlimited
          ? std::numeric_limits<std::size_t>::max()
          : room_beside_buffers(paging, std::max(page_bytes_of(options.layout, paging),
                                                 page_bytes_of(options.matrix_layout, paging)));
  const bool has_own_size = unlimited && paging.resident_page_bytes != 0;
  for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
    page_begin_.push_back(pages_.size());
    cut_pages(unit, has_own_size ? paging.resident_page_bytes : paging.page_bytes);
  }
  page_begin_.push_back(pages_.size());
  // The first pages of the sweep are the resident ones: the next forward pass starts with them.
  for (StatePage& page : pages_) {
    const std::size_t bytes = page.layout.bytes(page.count);
    page.resident = bytes <= room;
    room = page.resident ? room - bytes : 0;
  }

  device_grads_ =
      arena.allocate(MemoryKind::device, DType::f32, {device_grads}, "gradient sums/shard");
  host_grads_ = arena.allocate(MemoryKind::pinned, DType::f32, {host_grads}, "gradient sums/shard");
  partials_ = arena.allocate(MemoryKind::device, DType::f32, {options.group_sums ? total : 0},
                             "gradient sums/groups");
  allocate_resident(arena);
  allocate_paged(arena);
}

// Appends the pages of a unit, of at most `page_bytes`.
void ShardState::cut_pages(UnitId unit, std::size_t page_bytes) {
  const OptimizerShard shard = range(unit);
  const ParamUnit& of = layout_.unit(unit);
  const bool orthogonalizes = options_.matrix_layout.size() > 0;
  for_each_kind(of, shard, orthogonalizes, [&](Index first, Index last, bool in_matrices) {
    const StateLayout& arrays = in_matrices ? options_.matrix_layout : options_.layout;
    const Index page_size = page_elements(arrays, page_bytes);
    for (Index begin = first; begin < last; begin += page_size) {
      const Index count = std::min(page_size, last - begin);
      const Index from = shard.param_start + begin;
      pages_.push_back(
          {unit,
           begin,
           count,
           {},
           false,
           decay_runs_of(of, from, from + count, options_.decay_all, orthogonalizes),
           arrays,
           orthogonalizes ? matrix_runs_of(of, from, from + count) : std::vector<MatrixRun>()});
    }
  });
}

void ShardState::allocate_resident(Arena& arena) {
  Index bytes = 0;
  for (const StatePage& page : pages_) {
    bytes += page.resident ? static_cast<Index>(page.layout.bytes(page.count)) : 0;
  }
  resident_state_ =
      arena.allocate(MemoryKind::device, DType::u8, {bytes}, "optimizer state/resident");
  Index at = 0;
  for (StatePage& page : pages_) {
    if (page.resident) {
      const auto page_bytes = static_cast<Index>(page.layout.bytes(page.count));
      page.state = resident_state_.view().slice(at, at + page_bytes);
      at += page_bytes;
    }
  }
}

// Pinning takes seconds for each few gigabytes: piece by piece, so that it is seen to continue and
// fails early.
void ShardState::allocate_paged(Arena& arena) {
  constexpr std::size_t kPiece = std::size_t{4} << 30U;
  constexpr std::size_t kWorthSaying = std::size_t{16} << 30U;
  const auto bytes_of = [](const StatePage& page) { return page.layout.bytes(page.count); };
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
  return stored_numbers(page.layout, array, page.state, params_of(page), page.count, begin, count);
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

// The page stores the numbers of `array`.
bool has_numbers(const StatePage& page, StateArray array) {
  return array == StateArray::master || page.layout.has(array);
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
        const std::span wanted(data_as<float>(values) + at, static_cast<std::size_t>(count));
        if (!has_numbers(page, array)) {
          std::ranges::fill(wanted, 0.0F);
          return;
        }
        const HostNumbers numbers(stored(page, array, first, count));
        numbers.load(stream);
        decode(numbers.host, wanted);
      });
}

void ShardState::write(UnitId unit, StateArray array, Index begin, ConstTensorView values) {
  std::optional<Stream> stream = state_stream(device_);
  for_each_piece(
      unit, begin, values.count(), [&](const StatePage& page, Index first, Index at, Index count) {
        const std::span given(data_as<float>(values) + at, static_cast<std::size_t>(count));
        if (!has_numbers(page, array)) {
          if (std::ranges::any_of(given, [](float number) { return number != 0; })) {
            throw FormatError(fmt::format("{} of a hidden matrix in {} is not zero: this optimizer "
                                          "keeps none there",
                                          array_name(array), layout_.unit(unit).name),
                              TESSERA_HERE);
          }
          return;
        }
        const HostNumbers numbers(stored(page, array, first, count));
        encode(given, numbers.host);
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
      zero_all_but(page.layout.values(page.state, page.count, master), page.state, stream);
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
