// What the reader and the writer of token files know of the format (token_file.md).
#pragma once

#include <string>
#include <string_view>

#include "kernels/base/hash.h"
#include "runtime/data/token_file.h"
#include "runtime/hdf5/hdf5_file.h"

namespace tessera {

inline constexpr const char* kTokenFormatName = "tessera-tokens";
inline constexpr Index kMaxVocab = Index{1} << 31U;  // ids are i32 in a batch

/// Bytes of one token in a file for this vocabulary.
[[nodiscard]] std::size_t width_for(Index vocab);
/// "u8", "u16", "u32".
[[nodiscard]] std::string_view width_name(std::size_t width);
[[nodiscard]] hid_t file_type(std::size_t width);
/// The hash in a file: of what gives ids their meaning, then of the three datasets.
[[nodiscard]] std::string combined_hash(const TokenFileInfo& info, std::size_t width,
                                        std::string_view model, const Xxh3& tokens,
                                        const Xxh3& documents, const Xxh3& mask);

}  // namespace tessera
