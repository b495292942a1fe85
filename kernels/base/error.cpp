#include "kernels/base/error.h"

namespace tessera {

Error::Error(std::string_view message, SourceLocation where)
    : std::runtime_error(std::string(where.file) + ":" + std::to_string(where.line) + ": " +
                         std::string(message)),
      message_(message) {}

}  // namespace tessera
