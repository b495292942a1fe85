// A shard that goes to another node's disk over TCP, and what is refused or given up on the way.
#include "runtime/run/partner_copy.h"

#include <chrono>
#include <cstddef>
#include <fstream>
#include <future>
#include <string>
#include <thread>

#include <arpa/inet.h>
#include <boost/test/unit_test.hpp>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

constexpr IpAddress kLoopback = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
const std::string kToken = "5f0c";
const PartnerShard kShard = {
    .identity = {"0a1b2c3d-0000-4000-8000-000000000001", 40}, .rank = 1, .world_size = 3};
constexpr const char* kPlace = "host/.tmp-step-00000040.0a1b2c3d/shard-00001-of-00003.h5";

PartnerAddress address_of(const ShardReceiver& receiver) {
  return {"there", {kLoopback}, receiver.port()};
}

std::string content(std::size_t bytes) {
  std::string text(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) {
    text[i] = static_cast<char>(i * 31 + i / 257);
  }
  return text;
}

std::string whole(const std::filesystem::path& path) {
  return read_whole_file(path, std::size_t{1} << 30U);
}

struct Bench {
  explicit Bench(std::size_t bytes = 3 * kPartnerPieceBytes + 5) : sent(content(bytes)) {
    std::ofstream(file(), std::ios::binary) << sent;
    receiver.set_folder(folder.path() / "host");
  }
  [[nodiscard]] std::filesystem::path file() const { return folder.path() / "shard"; }
  [[nodiscard]] std::filesystem::path copy() const { return folder.path() / kPlace; }
  /// Why it failed; empty: it did not.
  std::string send(const SendOptions& options = {.token = kToken}) {
    try {
      send_shard(file(), kShard, address_of(receiver), options, stop);
    } catch (const WriteError& error) {
      return error.message();
    }
    return {};
  }
  TempFolder folder;
  std::string sent;
  std::atomic<bool> stop{false};
  ShardReceiver receiver{kToken, 2};
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

BOOST_AUTO_TEST_SUITE(partner_copy)

BOOST_AUTO_TEST_CASE(a_shard_arrives_whole_under_its_name_in_the_folder_of_its_save) {
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, kPartnerPieceBytes, 5 * kPartnerPieceBytes + 3}) {
    Bench bench(bytes);
    BOOST_TEST(bench.send() == "");
    BOOST_TEST((whole(bench.copy()) == bench.sent), bytes);
  }
}

BOOST_AUTO_TEST_CASE(a_second_shard_of_this_name_is_refused_and_the_first_stays) {
  Bench bench;
  BOOST_TEST(bench.send() == "");
  const std::string cause = bench.send();
  BOOST_TEST(has(cause, "the copy of shard to its partner, host there: "), cause);
  BOOST_TEST(has(cause, "shard-00001-of-00003.h5"), cause);
  BOOST_TEST((whole(bench.copy()) == bench.sent));
}

BOOST_AUTO_TEST_CASE(only_who_knows_the_token_is_heard) {
  Bench bench;
  BOOST_TEST(bench.send({.token = "another"}) != "");
  BOOST_TEST(!std::filesystem::exists(bench.copy()));
  BOOST_CHECK_THROW(require_partner(address_of(bench.receiver), {.token = "another"}), CommError);
  BOOST_CHECK_NO_THROW(require_partner(address_of(bench.receiver), {.token = kToken}));
}

BOOST_AUTO_TEST_CASE(a_partner_that_is_not_there_is_named_with_each_address) {
  Bench bench;
  PartnerAddress nowhere = address_of(bench.receiver);
  nowhere.port = 1;
  try {
    require_partner(nowhere, {.token = kToken});
    BOOST_ERROR("a connection to port 1");
  } catch (const CommError& error) {
    BOOST_TEST(has(error.message(), "127.0.0.1 port 1: Connection refused"), error.message());
  }
  nowhere.addresses = {{}, kLoopback};
  nowhere.port = bench.receiver.port();
  BOOST_CHECK_NO_THROW(require_partner(nowhere, {.token = kToken}));  // the second one
}

BOOST_AUTO_TEST_CASE(a_copy_before_its_folder_is_known_or_on_a_bad_place_fails_alone) {
  Bench bench;
  std::ofstream(bench.folder.path() / "taken") << "a file";
  bench.receiver.set_folder(bench.folder.path() / "taken");
  BOOST_TEST(has(bench.send(), "taken"));
  bench.receiver.set_folder(bench.folder.path() / "host");
  BOOST_TEST(bench.send() == "");
}

BOOST_AUTO_TEST_CASE(the_rate_is_kept) {
  constexpr double kRate = 8.0 * kPartnerPieceBytes;
  Bench bench(4 * kPartnerPieceBytes);
  const auto begin = std::chrono::steady_clock::now();
  BOOST_TEST(bench.send({.token = kToken, .bytes_per_second = kRate}) == "");
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  BOOST_TEST(took.count() >= 0.5);
}

BOOST_AUTO_TEST_CASE(a_copy_that_is_given_up_ends_at_once_and_leaves_no_file) {
  Bench bench(4 * kPartnerPieceBytes);
  auto sending = std::async(std::launch::async, [&] {
    return bench.send({.token = kToken, .bytes_per_second = 0.01 * kPartnerPieceBytes});
  });
  while (!std::filesystem::exists(bench.copy())) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const auto begin = std::chrono::steady_clock::now();
  bench.stop = true;
  BOOST_TEST(has(sending.get(), "given up"));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  BOOST_TEST(took.count() < 2);
  while (std::filesystem::exists(bench.copy())) {  // the receiver sees the end of the connection
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

BOOST_AUTO_TEST_CASE(a_sender_that_falls_silent_does_not_hold_the_others_up) {
  Bench bench;
  const int idle = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in target = {};
  target.sin_family = AF_INET;
  target.sin_port = htons(bench.receiver.port());
  target.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  BOOST_TEST_REQUIRE(::connect(idle, reinterpret_cast<sockaddr*>(&target), sizeof(target)) == 0);
  BOOST_TEST(bench.send() == "");
  ::close(idle);
}

BOOST_AUTO_TEST_CASE(addresses_survive_the_way_to_other_ranks_as_text) {
  const PartnerAddress address = {"node-7", {kLoopback, {0x20, 1, 0xd, 0xb8}}, 40123};
  const PartnerAddress same = PartnerAddress::from_text(address.to_text());
  BOOST_TEST(same.host == address.host);
  BOOST_TEST(same.port == address.port);
  BOOST_TEST((same.addresses == address.addresses));
  for (const char* text : {"", "host", "host port", "host 1 0g", "host 1 00"}) {
    BOOST_CHECK_THROW((void)PartnerAddress::from_text(text), FormatError);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
