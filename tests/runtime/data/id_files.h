// Contents of .npy and llm.c .bin files.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace tessera::test {

/// A .npy file with any header text, padded as numpy does.
inline std::string npy_with_header(std::string_view header, std::string_view data,
                                   int version = 1) {
  std::string text(header);
  const std::size_t prefix = version == 1 ? 10 : 12;
  while ((prefix + text.size() + 1) % 64 != 0) {
    text += ' ';
  }
  text += '\n';
  std::string file = "\x93NUMPY";
  file += static_cast<char>(version);
  file += '\0';
  for (std::size_t i = 0; i < prefix - 8; ++i) {
    file += static_cast<char>(text.size() >> (8 * i));
  }
  return file + text + std::string(data);
}

/// `type` as numpy writes it: byte order, kind, width.
inline std::string npy(std::string_view type, const std::vector<std::int64_t>& values,
                       int version = 1) {
  std::string data;
  const auto width = static_cast<std::size_t>(type[2] - '0');
  for (const std::int64_t value : values) {
    for (std::size_t i = 0; i < width; ++i) {
      const std::size_t byte = type[0] == '>' ? width - 1 - i : i;
      data += static_cast<char>(value >> (8 * byte));
    }
  }
  return npy_with_header(fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({},), }}",
                                     type, values.size()),
                         data, version);
}

inline std::string llmc_bin(const std::vector<std::int64_t>& ids, std::uint32_t magic = 20240520) {
  const bool is_wide = magic == 20240801;
  std::string file(1024, '\0');
  const auto put = [&file](std::size_t word, std::uint32_t value) {
    std::memcpy(file.data() + word * sizeof value, &value, sizeof value);
  };
  put(0, magic);
  put(1, is_wide ? 7 : 1);
  put(2, static_cast<std::uint32_t>(ids.size()));
  for (const std::int64_t id : ids) {
    for (int byte = 0; byte < (is_wide ? 4 : 2); ++byte) {
      file += static_cast<char>(id >> (8 * byte));
    }
  }
  return file;
}

}  // namespace tessera::test
