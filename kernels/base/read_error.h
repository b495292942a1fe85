// Why a file cannot be read, or is not what it should be: the answers on which it depends whether
// an older file may take its place.
#pragma once

#include "kernels/base/error.h"

namespace tessera {

/// There is no such file or folder: an option, or another file, names one that is not there. A
/// FormatError to what reads several files as one: a step without one of its files is incomplete.
/// Exit status 2.
class MissingError : public FormatError {
 public:
  using FormatError::FormatError;
  [[nodiscard]] int exit_status() const noexcept override { return 2; }
};

/// The bytes of a file were read, and are proven not to be those that were written: a checksum or
/// a length differs. Reading again does not help. Exit status 3.
class DamageError : public FormatError {
 public:
  using FormatError::FormatError;
};

/// The system could not read a file (EIO, EACCES, ESTALE, a lock): nothing is known of its content,
/// and a later attempt may succeed. Never a reason to pass a file over. Exit status 3.
class ReadError : public FormatError {
 public:
  using FormatError::FormatError;
};

}  // namespace tessera
