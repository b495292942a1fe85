#include "runtime/launch/agree.h"

#include <algorithm>
#include <charconv>
#include <new>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "collectives/communicator.h"
#include "collectives/mpi_control.h"
#include "collectives/mpi_session.h"

namespace tessera {
namespace {

template <typename Kind>
class Agreed final : public Kind, public AgreedMark {
 public:
  using Kind::Kind;
};

// What a rank tells the others: "STATUS\nHOST\nMESSAGE", or nothing where it succeeded.
std::string encode(const std::optional<Failure>& failure, std::string_view host) {
  return failure ? fmt::format("{}\n{}\n{}", failure->exit_status, host, failure->message)
                 : std::string();
}

struct RankFailure {
  std::string_view host;
  Failure failure;
};

RankFailure decode(std::string_view text) {
  const std::size_t first = text.find('\n');
  TESSERA_REQUIRE(first != std::string_view::npos, "a rank's outcome without host");
  const std::size_t second = text.find('\n', first + 1);
  TESSERA_REQUIRE(second != std::string_view::npos, "a rank's outcome without message");
  int status = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + first, status);
  TESSERA_REQUIRE(error == std::errc() && end == text.data() + first, "a rank's exit status");
  return {text.substr(first + 1, second - first - 1),
          {status, std::string(text.substr(second + 1))}};
}

void throw_if_any_failed(const std::vector<std::string>& outcomes) {
  const auto failed = std::find_if(outcomes.begin(), outcomes.end(),
                                   [](const std::string& text) { return !text.empty(); });
  if (failed == outcomes.end()) {
    return;
  }
  const RankFailure lowest = decode(*failed);
  const bool alike = std::all_of(outcomes.begin(), outcomes.end(), [&](const std::string& text) {
    if (text.empty()) {
      return false;
    }
    const RankFailure other = decode(text);
    return other.failure.exit_status == lowest.failure.exit_status &&
           other.failure.message == lowest.failure.message;
  });
  if (alike) {
    throw_agreed(lowest.failure, TESSERA_HERE);
  }
  throw_agreed(
      {lowest.failure.exit_status, fmt::format("rank {} ({}): {}", failed - outcomes.begin(),
                                               lowest.host, lowest.failure.message)},
      TESSERA_HERE);
}

}  // namespace

Failure failure_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const ContractError& e) {
    const bool agreed =
        dynamic_cast<const AgreedMark*>(&e) != nullptr;  // then it says this already
    return {e.exit_status(),
            agreed ? e.message()
                   : fmt::format("an internal error in tessera, please report it: {}", e.what())};
  } catch (const Error& e) {
    return {e.exit_status(), e.message()};
  } catch (const std::bad_alloc&) {
    constexpr int kDeviceStatus = 5;
    return {kDeviceStatus,
            "host memory ran out: ask for a larger node or memory limit, use more ranks, "
            "or a smaller --micro-batch"};
  } catch (const std::exception& e) {
    constexpr int kFaultStatus = 9;
    return {kFaultStatus,
            fmt::format("an internal error in tessera, please report it: {}", e.what())};
  } catch (...) {
    constexpr int kFaultStatus = 9;
    return {kFaultStatus,
            "an internal error in tessera, please report it: an exception of unknown type"};
  }
}

void throw_agreed(const Failure& failure, SourceLocation where) {
  switch (failure.exit_status) {
    case 2:
      throw Agreed<ConfigError>(failure.message, where);
    case 3:
      throw Agreed<FormatError>(failure.message, where);
    case 4:
      throw Agreed<WriteError>(failure.message, where);
    case 5:
      throw Agreed<DeviceError>(failure.message, where);
    case 6:
      throw Agreed<CommError>(failure.message, where);
    case 7:
      throw Agreed<DivergedError>(failure.message, where);
    default:
      throw Agreed<ContractError>(failure.message, where);
  }
}

void settle(MpiSession& session, const std::optional<Failure>& mine) {
  throw_if_any_failed(session.control().gather_text(encode(mine, session.host())));
}

void settle(Communicator& comm, const std::optional<Failure>& mine) {
  throw_if_any_failed(comm.gather_text(encode(mine, host_name())));
}

}  // namespace tessera
