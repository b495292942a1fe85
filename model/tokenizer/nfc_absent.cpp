// For builds without utf8proc: nothing can be normalized.
#include "kernels/base/error.h"
#include "model/tokenizer/nfc.h"

namespace tessera {
namespace {

[[noreturn]] void refuse() {
  throw ConfigError(
      "this build has no utf8proc, which brings text into this tokenizer's normalization form: "
      "install libutf8proc-dev (bash jobs/packages.sh) and build again",
      TESSERA_HERE);
}

}  // namespace

Nfc::Nfc(NfcTables tables) : tables_(tables) {
  refuse();
}

// NOLINTNEXTLINE(*-member-functions-to-static): nfc_utf8proc.cpp needs the object
std::string_view Nfc::normalized(std::string_view /*text*/, std::string& /*room*/) const {
  refuse();
}

}  // namespace tessera
