// A file size limit (ulimit -f) for this process, for a while: it stands for a full disk.
#pragma once

#include <boost/test/unit_test.hpp>
#include <sys/resource.h>

#include "kernels/base/write_failure.h"

namespace tessera::test {

class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ignore_file_size_signal();
    BOOST_REQUIRE(::getrlimit(RLIMIT_FSIZE, &old_) == 0);
    rlimit limit = old_;
    limit.rlim_cur = bytes;
    BOOST_REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~FileSizeLimit() { static_cast<void>(::setrlimit(RLIMIT_FSIZE, &old_)); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit old_{};
};

}  // namespace tessera::test
