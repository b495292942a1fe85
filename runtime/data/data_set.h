// The token files behind one word of --data: a file, all of a folder, or those of a list.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/token_file.h"

namespace tessera {

/// What one word of --data names, and its share of the sequences of a run.
struct DataSet {
  std::filesystem::path path;  // as it was given
  std::optional<double> weight;
  std::vector<std::filesystem::path> files;  // one or more, in the order in which they count
  std::vector<std::string> notes;            // what was passed over in a folder
};

/// "corpus.h5", "corpus/" or "corpus.list", each with ":0.7" behind it or not. The part after the
/// last colon is a weight if it is a number and nothing has the whole text as its name.
///   folder       its token files and those of folders in it, in the order of their names; those
///                that tokenize --held-out made (NAME.held-out.h5) and other files are passed over
///   .list        a file a line, from the list's folder on; empty lines and those that begin with
///                '#' are passed over
/// Throws ConfigError on a weight that is not above 0, what is not there, a folder or list without
/// a token file, or with a .h5 file that is none; ReadError, FormatError.
[[nodiscard]] DataSet parse_data_set(const std::string& text);

/// The path and weight of such a text alone.
[[nodiscard]] DataSet split_weight(std::string_view text);

/// Throws ConfigError, naming two files, where not all of a set have a mask or none, one vocabulary
/// and one end token: they would not be one data set. `files` are those of `set`.
void require_alike(const DataSet& set, const std::vector<const TokenFile*>& files);

}  // namespace tessera
