#include "runtime/launch/host_board.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <string>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collectives/mpi_control.h"
#include "collectives/mpi_session.h"
#include "kernels/base/error.h"
#include "kernels/base/log.h"
#include "kernels/base/write_failure.h"

namespace tessera {

static_assert(std::atomic<std::int64_t>::is_always_lock_free &&
                  std::atomic<std::uint32_t>::is_always_lock_free &&
                  std::atomic<bool>::is_always_lock_free,
              "atomics between processes must not use locks of one of them");

struct HostBoard::Header {
  std::atomic<bool> report_claimed{false};
  // the slots follow, aligned
};

namespace {

// Slots begin one cache line behind the header.
constexpr std::size_t kHeaderBytes = 64;

// Memory under a name, or null, and why. `flags` are those of shm_open. With O_CREAT the memory is
// reserved, so that a full /dev/shm shows here and not as a signal at the first write.
void* map_shared(const std::string& name, int flags, std::size_t bytes, int& code) {
  constexpr mode_t kOwnerOnly = 0600;
  const int file = shm_open(name.c_str(), flags, kOwnerOnly);
  if (file < 0) {
    code = errno;
    return nullptr;
  }
  void* memory = nullptr;
  code = (flags & O_CREAT) == 0 ? 0 : posix_fallocate(file, 0, static_cast<off_t>(bytes));
  if (code == 0) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    code = memory == MAP_FAILED ? errno : 0;
  }
  (void)close(file);  // the mapping stays
  return memory == MAP_FAILED ? nullptr : memory;
}

bool process_is_there(pid_t pid) {
  return kill(pid, 0) == 0 || errno != ESRCH;
}

void* map_private(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw DeviceError(fmt::format("no memory for the watchdog's board of {} bytes", bytes),
                      TESSERA_HERE);
  }
  return memory;
}

}  // namespace

HostBoard::HostBoard(MpiSession& session) {
  const std::vector<std::string> hosts = session.control().gather_text(session.host());
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    if (hosts[r] == session.host()) {
      ranks_.push_back(static_cast<int>(r));
    }
  }
  own_ = static_cast<std::size_t>(std::find(ranks_.begin(), ranks_.end(), session.rank()) -
                                  ranks_.begin());
  bytes_ = kHeaderBytes + ranks_.size() * sizeof(BoardSlot);

  // The first rank of a host makes the memory and names it to the others; the name goes as soon as
  // all have come, so that nothing is left behind whatever happens later.
  std::string name;
  int code = 0;
  if (own_ == 0) {
    name = fmt::format("/tessera-{}-{}", getpid(),
                       std::chrono::steady_clock::now().time_since_epoch().count());
    memory_ = map_shared(name, O_RDWR | O_CREAT | O_EXCL, bytes_, code);
    if (memory_ == nullptr) {
      (void)shm_unlink(name.c_str());
      name.clear();
    }
  }
  const std::vector<std::string> names = session.control().gather_text(name);
  const std::string& shared = names[static_cast<std::size_t>(ranks_.front())];
  if (own_ != 0 && !shared.empty()) {
    memory_ = map_shared(shared, O_RDWR, bytes_, code);
  }
  session.control().barrier();
  if (!name.empty()) {
    (void)shm_unlink(name.c_str());
  }
  if (memory_ == nullptr) {
    if (ranks_.size() > 1) {
      log_line(LogLevel::warning,
               fmt::format("cannot share memory with the other ranks of this host ({}):"
                           " a hang report will not name them",
                           code == 0 ? "another rank could not" : write_failure(code)));
    }
    ranks_ = {session.rank()};
    own_ = 0;
    bytes_ = kHeaderBytes + sizeof(BoardSlot);
    memory_ = map_private(bytes_);
  }
  if (own_ == 0) {
    std::construct_at(static_cast<Header*>(memory_));
  }
  std::construct_at(slots() + own_)->pid = getpid();
  session.control().barrier();  // no board is used before all of it is there
  // Ranks in containers of their own cannot see each other's processes, which is not a loss.
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    pid_is_seen_.push_back(static_cast<char>(i != own_ && process_is_there(slots()[i].pid)));
  }
  session.control().barrier();  // none goes before it was looked for
}

HostBoard::~HostBoard() {
  if (munmap(memory_, bytes_) != 0) {
    log_line(LogLevel::warning, fmt::format("munmap failed: {}", std::strerror(errno)));
  }
}

BoardSlot* HostBoard::slots() const noexcept {
  static_assert(sizeof(Header) <= kHeaderBytes && alignof(BoardSlot) <= kHeaderBytes);
  return reinterpret_cast<BoardSlot*>(static_cast<std::byte*>(memory_) + kHeaderBytes);
}

const BoardSlot& HostBoard::slot(std::size_t index) const noexcept {
  return slots()[index];
}

void HostBoard::write(const ProgressSnapshot& snapshot, std::int64_t now_ns,
                      std::int64_t progress_ns) noexcept {
  BoardSlot& own = slots()[own_];
  const std::uint32_t next = 1 - own.current.load(std::memory_order_relaxed);
  own.copies[next] = snapshot;
  own.current.store(next, std::memory_order_release);
  own.progress_ns.store(progress_ns, std::memory_order_relaxed);
  own.heartbeat_ns.store(now_ns, std::memory_order_relaxed);
}

void HostBoard::leave() noexcept {
  slots()[own_].left.store(true, std::memory_order_relaxed);
}

bool HostBoard::claim_report() noexcept {
  return !static_cast<Header*>(memory_)->report_claimed.exchange(true);
}

std::ptrdiff_t HostBoard::lost_neighbour() const noexcept {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const BoardSlot& other = slots()[i];
    // `left` once more afterwards: it may have ended in good order between the two looks
    if (pid_is_seen_[i] != 0 && !other.left && !process_is_there(other.pid) && !other.left) {
      return static_cast<std::ptrdiff_t>(i);
    }
  }
  return -1;
}

bool HostBoard::claim_loss(std::size_t index) noexcept {
  const bool reported = static_cast<const Header*>(memory_)->report_claimed;
  return !reported && !slots()[index].loss_claimed.exchange(true);
}

ProgressSnapshot HostBoard::last_snapshot(const BoardSlot& slot) noexcept {
  return slot.copies[slot.current.load(std::memory_order_acquire)];
}

}  // namespace tessera
