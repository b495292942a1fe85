#include "runtime/run/partner_copy.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/hash.h"
#include "runtime/checkpoint/run_folder.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kHeaderBytes = 256;  // a line of text, padded with zeros
constexpr std::size_t kMostAnswerBytes = 4096;
constexpr std::string_view kProbe = "probe";
constexpr std::string_view kShard = "shard";
constexpr int kPollMilliseconds = 100;  // how soon a thread sees that it is to stop
constexpr double kConnectSeconds = 5;
constexpr std::size_t kMapped = 12;  // bytes before an IPv4 address in IPv6

std::string cause_of(int number) {
  return std::generic_category().message(number);
}

[[noreturn]] void fail(const std::string& text) {
  throw CommError(text, TESSERA_HERE);
}

/// A socket that never blocks; every wait is a poll that sees `stop`.
class Socket {
 public:
  Socket(int descriptor, const std::atomic<bool>& stop, double silence_seconds)
      : descriptor_(descriptor), stop_(stop), silence_seconds_(silence_seconds) {
    if (descriptor_ < 0) {
      fail(fmt::format("no socket: {}", cause_of(errno)));
    }
    ::fcntl(descriptor_, F_SETFL, ::fcntl(descriptor_, F_GETFL) | O_NONBLOCK);
  }
  ~Socket() { ::close(descriptor_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  void connect(const sockaddr* address, socklen_t bytes) {
    if (::connect(descriptor_, address, bytes) == 0) {
      return;
    }
    if (errno != EINPROGRESS) {
      fail(cause_of(errno));
    }
    wait(POLLOUT, kConnectSeconds);
    int error = 0;
    socklen_t size = sizeof(error);
    ::getsockopt(descriptor_, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
      fail(cause_of(error));
    }
  }

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent >= 0) {
        bytes = bytes.subspan(static_cast<std::size_t>(sent));
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        wait(POLLOUT, silence_seconds_);
      } else if (errno != EINTR) {
        fail(cause_of(errno));
      }
    }
  }

  /// Up to all of `bytes`; fewer only at the end of what comes.
  std::size_t read(std::span<std::byte> bytes) {
    std::size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t got = ::recv(descriptor_, bytes.data() + done, bytes.size() - done, 0);
      if (got == 0) {
        break;
      }
      if (got > 0) {
        done += static_cast<std::size_t>(got);
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        wait(POLLIN, silence_seconds_);
      } else if (errno != EINTR) {
        fail(cause_of(errno));
      }
    }
    return done;
  }

  /// Whether the other side has written, or has closed.
  [[nodiscard]] bool has_input() const {
    pollfd wanted = {descriptor_, POLLIN, 0};
    return ::poll(&wanted, 1, 0) > 0;
  }
  /// Ends what this side writes, and passes over what the other one still sends: a connection that is
  /// closed with bytes unread loses what was written last.
  void drain() {
    ::shutdown(descriptor_, SHUT_WR);
    std::array<std::byte, 4096> unread;
    while (read(unread) == unread.size()) {
    }
  }

 private:
  void wait(short what, double seconds) const {
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    pollfd wanted = {descriptor_, what, 0};
    while (::poll(&wanted, 1, kPollMilliseconds) <= 0) {
      if (stop_) {
        fail("the save was given up");
      }
      if (Clock::now() > end) {
        fail(fmt::format("nothing for {:.0f} s", seconds));
      }
    }
  }

  int descriptor_;
  const std::atomic<bool>& stop_;
  double silence_seconds_;
};

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t bytes = 0;
  int family = AF_INET6;
  [[nodiscard]] const sockaddr* get() const noexcept {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
};

bool is_ipv4(const IpAddress& address) {
  return !ipv4_text(address).empty();
}

SocketAddress socket_address(const IpAddress& address, std::uint16_t port) {
  SocketAddress made;
  if (is_ipv4(address)) {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&made.storage);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    std::memcpy(&v4->sin_addr, address.data() + kMapped, sizeof(v4->sin_addr));
    made.bytes = sizeof(sockaddr_in);
    made.family = AF_INET;
  } else {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&made.storage);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    std::memcpy(&v6->sin6_addr, address.data(), address.size());
    made.bytes = sizeof(sockaddr_in6);
  }
  return made;
}

std::string address_text(const IpAddress& address) {
  if (std::string v4 = ipv4_text(address); !v4.empty()) {
    return v4;
  }
  std::array<char, INET6_ADDRSTRLEN> text = {};
  return ::inet_ntop(AF_INET6, address.data(), text.data(), text.size());
}

std::array<std::byte, kHeaderBytes> header(const std::string& line) {
  TESSERA_REQUIRE(line.size() < kHeaderBytes, line);
  std::array<std::byte, kHeaderBytes> bytes = {};
  std::memcpy(bytes.data(), line.data(), line.size());
  return bytes;
}

/// Calls `use` with a connection to the first address that takes one.
template <typename Use>
void with_connection(const PartnerAddress& partner, const SendOptions& options,
                     const std::atomic<bool>& stop, const Use& use) {
  std::string causes;
  for (const IpAddress& address : partner.addresses) {
    const SocketAddress target = socket_address(address, partner.port);
    std::optional<Socket> socket;
    try {
      socket.emplace(::socket(target.family, SOCK_STREAM | SOCK_CLOEXEC, 0), stop,
                     options.silence_seconds);
      socket->connect(target.get(), target.bytes);
    } catch (const CommError& error) {
      causes += fmt::format("{}{} port {}: {}", causes.empty() ? "" : "; ", address_text(address),
                            partner.port, error.message());
      continue;
    }
    use(*socket);
    return;
  }
  fail(causes.empty() ? "it has no address that other hosts could reach" : causes);
}

/// The other side's answer: "+", or "-" and why not.
void require_answer(Socket& socket) {
  std::string answer(kMostAnswerBytes, '\0');
  answer.resize(socket.read(std::as_writable_bytes(std::span(answer))));
  if (!answer.starts_with('+')) {
    fail(answer.empty() ? "it closed the connection" : answer.substr(1));
  }
}

/// Sleeps until `bytes` may have been sent since `begin`.
void keep_rate(Clock::time_point begin, std::uint64_t bytes, double bytes_per_second,
               const std::atomic<bool>& stop) {
  const auto end =
      begin + std::chrono::duration_cast<Clock::duration>(
                  std::chrono::duration<double>(static_cast<double>(bytes) / bytes_per_second));
  while (Clock::now() < end && !stop) {
    std::this_thread::sleep_until(
        std::min(end, Clock::now() + std::chrono::milliseconds(kPollMilliseconds)));
  }
}

/// Takes what a sender sends into the folder of its save under `run_folder`, durably.
void receive(Socket& socket, const std::filesystem::path& run_folder, const PartnerShard& shard,
             std::uint64_t bytes) {
  TESSERA_REQUIRE(!run_folder.empty(), "no folder for copies yet");
  const std::filesystem::path path =
      join_save_folder(run_folder, shard.identity) / shard_file_name(shard.rank, shard.world_size);
  File file = File::create(path);
  try {
    file.allocate(bytes);
    std::vector<std::byte> piece(kPartnerPieceBytes);
    Xxh3 hash(HashWidth::bits128);
    for (std::uint64_t offset = 0; offset < bytes;) {
      const auto part = std::span(piece).first(
          static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), bytes - offset)));
      if (socket.read(part) < part.size()) {
        fail("the connection ended");
      }
      hash.add(part);
      file.write_at(offset, part);
      file.start_writeback(offset, part.size());
      offset += part.size();
    }
    Hash128 sent;
    const auto digest = std::as_writable_bytes(std::span(&sent, 1));
    if (socket.read(digest) < digest.size() || sent != hash.digest128()) {
      fail("what arrived is not what was sent");
    }
    file.sync();
    file.close();
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    throw;
  }
}

int open_listener(int family) {
  const int listener = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener < 0) {
    return -1;
  }
  const int off = 0;
  if (family == AF_INET6) {
    ::setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  // Any address: in both families all zeros.
  SocketAddress any = socket_address({}, 0);
  any.storage.ss_family = static_cast<sa_family_t>(family);
  if (::bind(listener, any.get(), family == AF_INET ? sizeof(sockaddr_in) : any.bytes) != 0 ||
      ::listen(listener, SOMAXCONN) != 0) {
    const int cause = errno;
    ::close(listener);
    errno = cause;
    return -1;
  }
  return listener;
}

}  // namespace

std::string PartnerAddress::to_text() const {
  std::string text = fmt::format("{} {}", host, port);
  for (const IpAddress& address : addresses) {
    text += ' ';
    for (const std::uint8_t byte : address) {
      text += fmt::format("{:02x}", byte);
    }
  }
  return text;
}

PartnerAddress PartnerAddress::from_text(std::string_view text) {
  constexpr int kHex = 16;
  PartnerAddress made;
  std::istringstream words{std::string(text)};
  words >> made.host >> made.port;
  bool is_sound = static_cast<bool>(words);
  for (std::string word; words >> word;) {
    IpAddress& address = made.addresses.emplace_back();
    is_sound = is_sound && word.size() == 2 * address.size();
    for (std::size_t i = 0; is_sound && i < address.size(); ++i) {
      const char* const first = word.data() + 2 * i;
      is_sound = std::from_chars(first, first + 2, address.at(i), kHex).ptr == first + 2;
    }
  }
  if (!is_sound) {
    throw FormatError(fmt::format("not the address of a partner: {}", text), TESSERA_HERE);
  }
  return made;
}

std::vector<IpAddress> reachable_addresses() {
  constexpr std::uint8_t kLinkLocal = 0xfe;  // fe80::/10 and what else begins so
  std::vector<IpAddress> addresses;
  for (const LocalAddress& local : local_addresses()) {
    if (!local.is_loopback && local.address.front() != kLinkLocal) {
      addresses.push_back(local.address);
    }
  }
  std::stable_partition(addresses.begin(), addresses.end(), is_ipv4);
  return addresses;
}

ShardReceiver::ShardReceiver(std::string token, int senders) : token_(std::move(token)) {
  listener_ = open_listener(AF_INET6);
  if (listener_ < 0) {
    listener_ = open_listener(AF_INET);  // a system without IPv6
  }
  if (listener_ < 0) {
    fail(fmt::format("no port to receive copies of shards on: {}", cause_of(errno)));
  }
  sockaddr_storage bound = {};
  socklen_t bytes = sizeof(bound);
  ::getsockname(listener_, reinterpret_cast<sockaddr*>(&bound), &bytes);
  port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                            : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  for (int i = 0; i < senders; ++i) {
    threads_.emplace_back([this] { serve(); });
  }
}

ShardReceiver::~ShardReceiver() {
  stop_ = true;
  for (std::thread& thread : threads_) {
    thread.join();
  }
  ::close(listener_);
}

void ShardReceiver::set_folder(const std::filesystem::path& folder) {
  const std::lock_guard lock(mutex_);
  folder_ = folder;
}

void ShardReceiver::serve() {
  constexpr int kNice = 10;  // training goes first; a hint
  static_cast<void>(::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice));
  while (!stop_) {
    pollfd wanted = {listener_, POLLIN, 0};
    if (::poll(&wanted, 1, kPollMilliseconds) <= 0) {
      continue;
    }
    const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection >= 0) {
      try {
        serve_one(connection);
      } catch (const std::exception&) {  // the sender's matter, which sees the connection end
      }
    }
  }
}

void ShardReceiver::serve_one(int connection) {
  Socket socket(connection, stop_, SendOptions{}.silence_seconds);
  std::array<char, kHeaderBytes> line = {};
  if (socket.read(std::as_writable_bytes(std::span(line))) < line.size()) {
    return;
  }
  line.back() = '\0';
  std::istringstream words{std::string(line.data())};
  std::string token;
  std::string what;
  words >> token >> what;
  if (token != token_) {
    return;  // somebody else's connection
  }
  std::string answer = "+";
  if (what == kShard) {
    try {
      PartnerShard shard;
      std::uint64_t bytes = 0;
      words >> shard.identity.step >> shard.identity.save_id >> shard.rank >> shard.world_size >>
          bytes;
      TESSERA_REQUIRE(static_cast<bool>(words), std::string(line.data()));
      receive(socket, folder(), shard, bytes);
    } catch (const Error& error) {
      answer = "-" + error.message();
    }
  }
  socket.write(bytes_of(answer));
  socket.drain();
}

std::filesystem::path ShardReceiver::folder() {
  const std::lock_guard lock(mutex_);
  return folder_;
}

void require_partner(const PartnerAddress& partner, const SendOptions& options) {
  const std::atomic<bool> never{false};
  with_connection(partner, options, never, [&](Socket& socket) {
    socket.write(header(fmt::format("{} {}", options.token, kProbe)));
    require_answer(socket);
  });
}

void send_shard(const std::filesystem::path& file, const PartnerShard& shard,
                const PartnerAddress& partner, const SendOptions& options,
                const std::atomic<bool>& stop) {
  try {
    const File source = File::open_read(file);
    const std::uint64_t bytes = source.size();
    with_connection(partner, options, stop, [&](Socket& socket) {
      socket.write(
          header(fmt::format("{} {} {} {} {} {} {}", options.token, kShard, shard.identity.step,
                             shard.identity.save_id, shard.rank, shard.world_size, bytes)));
      std::vector<std::byte> piece(kPartnerPieceBytes);
      Xxh3 hash(HashWidth::bits128);
      const Clock::time_point begin = Clock::now();
      for (std::uint64_t offset = 0; offset < bytes;) {
        const auto part = std::span(piece).first(
            static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), bytes - offset)));
        source.read_at(offset, part);
        hash.add(part);
        socket.write(part);
        offset += part.size();
        keep_rate(begin, offset, options.bytes_per_second, stop);
        if (stop) {
          fail("the save was given up");
        }
        if (socket.has_input()) {
          require_answer(socket);
        }
      }
      const Hash128 digest = hash.digest128();
      socket.write(std::as_bytes(std::span(&digest, 1)));
      require_answer(socket);
    });
  } catch (const Error& error) {
    throw WriteError(fmt::format("the copy of {} to its partner, host {}: {}",
                                 file.filename().string(), partner.host, error.message()),
                     TESSERA_HERE);
  }
}

}  // namespace tessera
