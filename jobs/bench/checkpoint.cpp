// bench checkpoint: how fast the state of a run goes to the disk and comes back, as `train` saves
// and loads it, beside plain sequential writes and reads of as many bytes in the same folder; and
// how long a save holds up training.
//
//   buffered   a file a rank, 16 MiB at a time through the page cache, then fsync
//   direct     the same with O_DIRECT, past the page cache
//   checkpoint CheckpointSaver from begin to the announcement, read_state of resume.h
//   disk       what the page cache holds of the files has been dropped; cache: it is warm
//   stats      what `inspect --stats` does, on rank 0, from the page cache
//
// A repetition takes as long as its slowest rank; the fastest repetition counts, for every side.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "collectives/communicator.h"
#include "collectives/mpi_session.h"
#include "jobs/bench/bench.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/base/quantity.h"
#include "kernels/kernel_table.h"
#include "model/model_config.h"
#include "optim/adamw_rule.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/checkpoint/tensor_statistics.h"
#include "runtime/launch/agree.h"
#include "runtime/run/checkpoint_saver.h"
#include "runtime/run/command_words.h"
#include "runtime/run/resume.h"

namespace tessera::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kSequentialBytes = std::size_t{16} << 20U;
constexpr std::size_t kDirectAlignment = 4096;
constexpr Index kEighth = 8;

struct Settings {
  fs::path folder;
  std::size_t bytes = 0;
  int repetitions = 3;
  double step_seconds = 1;
};

/// Of AdamW's state.
std::size_t element_bytes() {
  return state_layout(OptimizerKind::adamw).bytes(kShardAlignment) /
         static_cast<std::size_t>(kShardAlignment);
}

/// Blocks of Qwen3-0.6B's size, as many as come nearest to `bytes` of state.
ModelConfig model_of(std::size_t bytes) {
  ModelConfig config = preset("qwen3-0.6b");
  constexpr Index kByteVocabulary = 256;
  config.vocab_size = kByteVocabulary;
  config.num_layers = 1;
  const Index one = ParamLayout(config).total_count();
  config.num_layers = 2;
  const Index block = ParamLayout(config).total_count() - one;
  // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): AdamW's layout is not empty
  const auto wanted = static_cast<Index>(bytes / element_bytes());
  config.num_layers = 1 + std::max<Index>(0, (wanted - one + block / 2) / block);
  return config;
}

// A file descriptor for the plain side; every call is checked.
class PlainFile {
 public:
  PlainFile(const fs::path& path, int flags) : path_(path) {
    constexpr mode_t kMode = 0666;
    descriptor_ = ::open(path.c_str(), flags | O_CLOEXEC, kMode);
    require(descriptor_ >= 0, "open");
  }
  ~PlainFile() { ::close(descriptor_); }
  PlainFile(const PlainFile&) = delete;
  PlainFile& operator=(const PlainFile&) = delete;

  void write(std::span<const std::byte> bytes) {
    require(::write(descriptor_, bytes.data(), bytes.size()) == std::ssize(bytes), "write");
  }
  void read(std::span<std::byte> bytes) {
    require(::read(descriptor_, bytes.data(), bytes.size()) == std::ssize(bytes), "read");
  }
  void sync() { require(::fsync(descriptor_) == 0, "sync"); }
  void drop_cache() {
    require(::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED) == 0, "drop the cache of");
  }

 private:
  void require(bool holds, const char* what) const {
    if (!holds) {
      throw WriteError(fmt::format("cannot {} {}: {}", what, path_.string(), std::strerror(errno)),
                       TESSERA_HERE);
    }
  }
  fs::path path_;
  int descriptor_ = -1;
};

/// The optimizer state of a rank and what saves, loads and changes it, without a model.
class CheckpointBench {
 public:
  CheckpointBench(Communicator& comm, const Settings& settings)
      : comm_(comm),
        settings_(settings),
        layout_(model_of(settings.bytes)),
        shard_(layout_, {.rank = comm.rank(), .world_size = comm.world_size(), .paging = {}},
               arena_),
        optimizer_(rule_, shard_, {stream_, stream_, stream_}, arena_),
        plain_(settings.folder / fmt::format("sequential-{}", comm.rank())),
        piece_(static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, kSequentialBytes)),
               &std::free) {
    constexpr float kScale = 0x1p-20F;
    shard_.initialize([](UnitId, Index begin, std::span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = kScale * static_cast<float>(begin + static_cast<Index>(i));
      }
    });
    for (UnitId unit = 0; unit < layout_.unit_count(); ++unit) {
      const TensorView grad = shard_.grad(unit);
      std::fill_n(data_as<float>(grad), grad.count(), 1.0F);
      params_.resize(std::max(params_.size(), static_cast<std::size_t>(grad.count())));
    }
    std::memset(piece_.get(), 1, kSequentialBytes);
    sweep();  // moments that are not zeros
  }

  void run() {
    print("{} of state, {} ranks, in {}\n\nGB/s         buffered   direct checkpoint  of the "
          "better\n",
          format_bytes(shard_.state_bytes() * static_cast<std::size_t>(comm_.world_size())),
          comm_.world_size(), settings_.folder.parent_path().string());
    {
      Arena arena(Device{}, ArenaMode::allocate);
      CheckpointSaver saver(saver_options(shard_.state_bytes()), comm_, shard_, optimizer_, arena);
      const double buffered = fastest([&] { remove_plain(); }, [&] { write_plain(0); });
      const double direct = fastest([&] { remove_plain(); }, [&] { write_plain(O_DIRECT); });
      const double ours = fastest([&] { remove_step(); }, [&] { save(saver); });
      print_row("write", buffered, direct, ours);
    }
    for (const bool is_cold : {true, false}) {
      const auto ready = [&] {
        if (is_cold) {
          PlainFile(plain_, O_RDONLY).drop_cache();
          PlainFile(step_ / shard_file_name(comm_.rank(), comm_.world_size()), O_RDONLY)
              .drop_cache();
        }
      };
      const double buffered = fastest(ready, [&] { read_plain(0); });
      const double direct = is_cold ? fastest(ready, [&] { read_plain(O_DIRECT); }) : 0;
      const double ours = fastest(ready, [&] {
        CheckpointReader reader(step_);
        read_state(reader, shard_);
      });
      print_row(is_cold ? "load, disk" : "load, cache", buffered, direct, ours);
    }
    remove_plain();
    if (comm_.rank() == 0) {
      const auto start = Clock::now();
      CheckpointReader reader(step_);
      static_cast<void>(tensor_statistics(reader));
      print_row("stats, cache", 0, 0, seconds_since(start));
    }
    comm_.barrier();
    measure_stalls();
  }

 private:
  using Clock = std::chrono::steady_clock;

  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  template <typename... Values>
  void print(fmt::format_string<Values...> format, Values&&... values) const {
    if (comm_.rank() == 0) {
      fmt::print(format, std::forward<Values>(values)...);
      static_cast<void>(std::fflush(stdout));
    }
  }

  void print_row(const char* what, double buffered, double direct, double ours) const {
    constexpr double kGigabyte = 1e9;
    const double gigabytes = static_cast<double>(layout_.total_count()) *
                             static_cast<double>(element_bytes()) / kGigabyte;
    const auto rate = [&](double seconds) {
      return seconds > 0 ? fmt::format("{:.2f}", gigabytes / seconds) : std::string();
    };
    const double better = direct > 0 ? std::min(buffered, direct) : buffered;
    print("{:<12} {:>8} {:>8} {:>10}  {}\n", what, rate(buffered), rate(direct), rate(ours),
          better > 0 ? fmt::format("{:.0f}%", 100 * better / ours) : std::string());
  }

  /// The same on every rank: of the slowest.
  [[nodiscard]] double slowest(double seconds) const {
    double worst = 0;
    for (const std::string& text : comm_.gather_text(fmt::format("{}", seconds))) {
      worst = std::max(worst, std::stod(text));
    }
    return worst;
  }

  /// Seconds of the fastest repetition of `work`, each as its slowest rank sees it.
  double fastest(const std::function<void()>& ready, const std::function<void()>& work) {
    double best = 0;
    for (int repetition = 0; repetition < settings_.repetitions; ++repetition) {
      ready();
      comm_.barrier();
      const auto start = Clock::now();
      work();
      const double seconds = slowest(seconds_since(start));
      best = repetition == 0 ? seconds : std::min(best, seconds);
    }
    return best;
  }

  void remove_plain() const { remove_folder(plain_); }

  void write_plain(int flags) {
    PlainFile file(plain_, O_WRONLY | O_CREAT | O_EXCL | flags);
    for (std::size_t done = 0; done < shard_.state_bytes(); done += kSequentialBytes) {
      file.write({piece_.get(), kSequentialBytes});
    }
    file.sync();
  }

  void read_plain(int flags) {
    PlainFile file(plain_, O_RDONLY | flags);
    for (std::size_t done = 0; done < shard_.state_bytes(); done += kSequentialBytes) {
      file.read({piece_.get(), kSequentialBytes});
    }
  }

  [[nodiscard]] SaverOptions saver_options(std::size_t staging_bytes) const {
    return {.run_folder = settings_.folder, .retention = {}, .staging_bytes = staging_bytes};
  }

  void remove_step() {
    if (comm_.rank() == 0 && !step_.empty()) {
      remove_folder(step_);
    }
    comm_.barrier();
  }

  /// Seconds of the training thread.
  double begin(CheckpointSaver& saver) {
    const auto start = Clock::now();
    ManifestInfo info;
    info.step = ++step_number_;
    if (const SaveOutcomes failed = saver.begin(info); !failed.empty()) {
      throw WriteError(failed.front().message, TESSERA_HERE);
    }
    return seconds_since(start);
  }

  SaveOutcome finish(CheckpointSaver& saver) {
    const SaveOutcomes outcomes = saver.finish();
    if (outcomes.empty() || !outcomes.front().saved) {
      throw WriteError(outcomes.empty() ? "nothing was saved" : outcomes.front().message,
                       TESSERA_HERE);
    }
    step_ = outcomes.front().folder;
    return outcomes.front();
  }

  void save(CheckpointSaver& saver) {
    static_cast<void>(begin(saver));
    static_cast<void>(finish(saver));
  }

  /// What follows the backward pass of a step.
  void sweep() {
    optimizer_.begin_sweep();
    for (UnitId unit = 0; unit < layout_.unit_count(); ++unit) {
      optimizer_.update(unit, {.updates = 1, .lr = 0, .grad_scale = 1},
                        {params_.data(), DType::f32, Shape{shard_.grad(unit).count()}, Device{}});
    }
    optimizer_.synchronize();
  }

  void measure_stalls() {
    std::vector<std::byte> copy(shard_.state_bytes());
    const double copy_seconds = fastest([] {},
                                        [&] {
                                          std::byte* to = copy.data();
                                          for (const StatePage& page : shard_.pages()) {
                                            const auto bytes =
                                                static_cast<std::size_t>(page.state.count());
                                            std::memcpy(to, page.state.data, bytes);
                                            to += bytes;
                                          }
                                        });
    copy = {};
    print("\none copy of a rank's state in memory: {:.2f} s\n", copy_seconds);
    for (const double step_seconds : {0.0, settings_.step_seconds}) {
      print_stall("all", shard_.state_bytes(), step_seconds, copy_seconds);
    }
    print_stall("an eighth", shard_.state_bytes() / kEighth, settings_.step_seconds, copy_seconds);
  }

  /// One step, of which `step_seconds` pass until the sweep begins, while a save is under way.
  void print_stall(const char* what, std::size_t staging_bytes, double step_seconds,
                   double copy_seconds) {
    Arena arena(Device{}, ArenaMode::allocate);
    CheckpointSaver saver(saver_options(staging_bytes), comm_, shard_, optimizer_, arena);
    double best = 0;
    double save_seconds = 0;
    double waiting = 0;
    for (int repetition = 0; repetition < settings_.repetitions; ++repetition) {
      remove_step();
      comm_.barrier();
      const double begin_seconds = begin(saver);
      std::this_thread::sleep_for(std::chrono::duration<double>(step_seconds));
      sweep();
      const SaveOutcome outcome = finish(saver);
      const double stall = slowest(begin_seconds + outcome.snapshot.stall_seconds);
      if (repetition == 0 || stall < best) {
        best = stall;
        save_seconds = slowest(outcome.seconds);
        waiting = slowest(outcome.snapshot.waiting_seconds);
      }
    }
    print("staging for {}, optimizer pass {:.1f} s after the save begins: training stalls {:.2f} s "
          "({:.2f} of a copy), {:.2f} s of it waiting; the save takes {:.2f} s\n",
          what, step_seconds, best, best / copy_seconds, waiting, save_seconds);
  }

  Communicator& comm_;
  Settings settings_;
  Arena arena_{Device{}, ArenaMode::allocate};
  Stream stream_{Device{}, StreamPriority::normal, "bench"};
  ParamLayout layout_;
  ShardState shard_;
  AdamWRule rule_{kernel_table(DeviceKind::cpu), {}};
  PageSweep optimizer_;
  std::vector<float> params_;  // of one unit: where the optimizer leaves parameters
  fs::path plain_;
  std::unique_ptr<std::byte, decltype(&std::free)> piece_;
  fs::path step_;  // the last one saved
  Index step_number_ = 0;
};

int run(MpiSession& session, const Arguments& arguments) {
  Settings settings;
  std::string folder = ".";
  std::string bytes = "4GB";
  boost::program_options::options_description options = option_group("bench checkpoint");
  options.add_options()("out", boost::program_options::value(&folder)->default_value(folder),
                        "folder on the disk to measure; what is written there is removed again")(
      "bytes", boost::program_options::value(&bytes)->default_value(bytes),
      "state of all ranks together; memory for twice as much and a third is needed")(
      "repetitions", count_value(settings.repetitions, {1, kMostRepetitions}, "repetitions"),
      "the fastest counts")("step-seconds",
                            real_value(settings.step_seconds, {0, kMostSeconds}, "step-seconds"),
                            "of a step, until its optimizer pass begins");
  const bool goes_on = agree(session, [&] {
    if (!read_options(arguments, "mpirun -np N bench checkpoint [options]", options)) {
      return false;
    }
    settings.bytes = parse_bytes(bytes, {1, kMostBytes}, "--bytes");
    return true;
  });
  if (!goes_on) {
    return 0;
  }
  const auto comm = make_communicator(session, Device{});
  settings.folder =
      absolute_path(folder) / ("bench-checkpoint-" + comm->gather_text(new_uuid()).front());
  agree(session, [&] {
    if (session.rank() == 0) {
      make_run_folder(settings.folder);
    }
  });
  // Without what was measured, whether all went well or not.
  const auto remove = [&](Communicator* all) {
    if (all != nullptr) {
      all->barrier();
    }
    if (session.rank() == 0) {
      remove_folder(settings.folder);
    }
  };
  try {
    CheckpointBench(*comm, settings).run();
  } catch (...) {
    remove(nullptr);
    throw;
  }
  remove(comm.get());
  return 0;
}

const Benchmark kBenchmark("checkpoint", "saves and loads, beside plain writes and reads", &run);

}  // namespace
}  // namespace tessera::bench
