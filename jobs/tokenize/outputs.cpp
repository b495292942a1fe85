#include "jobs/tokenize/outputs.h"

#include <algorithm>
#include <iostream>
#include <limits>

#include <fmt/format.h>

#include "jobs/program.h"
#include "kernels/base/error.h"
#include "kernels/base/file_status.h"
#include "kernels/base/quantity.h"

namespace tessera::tokenize {
namespace {

// Opens what was written: what is printed is what train will see.
void print(const TokenFileWriter& writer) {
  print_contents(TokenFile(writer.path()));
}

// The line on a token file that makes room for a new one; empty where there is none.
std::string replaced_text(const Path& path) {
  try {
    if (!path_exists(path)) {
      return {};
    }
    const TokenFile old(path);
    return fmt::format("replaced {}, which had {} of {}\n", path.string(),
                       count_of(old.token_count(), "token", "tokens"), old.info().source);
  } catch (const Error&) {  // damaged, but ours: the writer replaces nothing else
    return fmt::format("replaced {}, which could not be read\n", path.string());
  }
}

}  // namespace

std::string count_of(Index count, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", grouped(count), count == 1 ? one : many);
}

std::string megabytes(Index bytes) {
  constexpr double kMegabyte = 1e6;
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) / kMegabyte);
}

TokenFileInfo info_of(const Options& options, const TokenizerFiles& files,
                      const Tokenizer& tokenizer) {
  TokenFileInfo info;
  info.source = source_of(options.paths);
  info.tokenizer = files.kind;
  info.tokenizer_name = files.name;
  info.vocab_size = tokenizer.vocab_size();
  info.end_token = tokenizer.end_token();
  info.is_chats = !options.chat.empty();
  return info;
}

void print_missing_end_token(const TokenizerFiles& files, const Tokenizer& tokenizer) {
  if (tokenizer.end_token() < 0 && files.kind != kBytesKind) {
    print_lines("warning: the tokenizer's files name no token that ends a document: documents "
                "follow each other without one\n");
  }
}

void print_lost_line_ends(Index count) {
  if (count > 0) {
    print_lines(fmt::format("warning: {} lost: this tokenizer does not keep them, so lines run "
                            "together\n",
                            count_of(count, "line end is", "line ends are")));
  }
}

void print_left_out(const LeftOut& left_out) {
  for (const LeftOut::Row& row : left_out.rows()) {
    print_lines(fmt::format("skipped {} ({}), the first {}\n", count_of(row.count, "file", "files"),
                            row.reason, row.first.string()));
  }
}

void print_contents(const TokenFile& file) {
  const TokenFileInfo& info = file.info();
  const std::string density =
      info.source_bytes == 0
          ? std::string()
          : fmt::format(", {:.2f} bytes a token", static_cast<double>(info.source_bytes) /
                                                      static_cast<double>(file.token_count()));
  print_lines(fmt::format("{}: {}, {}, vocabulary {}{}{}\n", file.path().string(),
                          count_of(file.token_count(), "token", "tokens"),
                          count_of(file.document_count(), "document", "documents"),
                          grouped(info.vocab_size), density,
                          file.has_mask() ? ", with a mask of targets" : ""));
}

std::string source_of(const std::vector<Path>& paths) {
  constexpr std::size_t kMaxNamed = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(paths.size(), kMaxNamed); ++i) {
    text += (i == 0 ? "" : ", ") + paths[i].string();
  }
  return paths.size() > kMaxNamed ? fmt::format("{} and {} more", text, paths.size() - kMaxNamed)
                                  : text;
}

Outputs::Outputs(const Options& options, const TokenFileInfo& info, const TokenizerFiles& files,
                 TokenFileWriter::Mask mask, std::uint64_t input_bytes)
    : share_(options.held_out), all_(options.out, info, files.content, mask) {
  all_.keep_companions(files.companions);
  // Held-out data is of several documents, and a part that is cut off is worth an evaluation.
  constexpr double kFewestDocuments = 8;
  constexpr double kFewestBytes = 1024;
  const double most = share_ == 0 || input_bytes == 0
                          ? std::numeric_limits<double>::infinity()
                          : std::max(share_ * static_cast<double>(input_bytes) / kFewestDocuments,
                                     kFewestBytes / share_);
  most_whole_ =
      most < static_cast<double>(kMostBytes) ? static_cast<std::uint64_t>(most) : kMostBytes;
  if (share_ > 0) {
    held_out_.emplace(options.held_out_path, info, files.content, mask);
    held_out_->keep_companions(files.companions);
  }
}

void Outputs::begin_document(std::uint64_t hash, std::uint64_t size) {
  constexpr unsigned kUnusedBits = 11;  // a double holds 53
  const double fraction = static_cast<double>(hash >> kUnusedBits) * 0x1p-53;
  const bool is_cut = held_out_ && size > most_whole_;
  left_ = is_cut ? size - static_cast<std::uint64_t>(share_ * static_cast<double>(size)) : 0;
  writer_ = held_out_ && !is_cut && fraction < share_ ? &*held_out_ : &all_;
  writer_->begin_document();
}

void Outputs::append(std::span<const std::uint32_t> ids, std::span<const std::uint8_t> mask,
                     std::uint64_t size, Index text_bytes) {
  if (left_ == 0 || size < left_) {
    left_ -= left_ == 0 ? 0 : size;
    writer_->append(ids, mask);
    writer_->add_source_bytes(text_bytes);
    return;
  }
  const double part = static_cast<double>(left_) / static_cast<double>(size);
  const auto kept = static_cast<std::size_t>(static_cast<double>(ids.size()) * part);
  const auto kept_bytes = static_cast<Index>(static_cast<double>(text_bytes) * part);
  const std::size_t kept_mask = mask.empty() ? 0 : kept;
  writer_->append(ids.first(kept), mask.first(kept_mask));
  writer_->add_source_bytes(kept_bytes);
  left_ = 0;
  writer_ = &*held_out_;
  writer_->begin_document();
  writer_->append(ids.subspan(kept), mask.subspan(kept_mask));
  writer_->add_source_bytes(text_bytes - kept_bytes);
}

void Outputs::commit(std::string_view hint_on_documents) {
  if (held_out_ && (held_out_->token_count() == 0 || all_.token_count() == 0)) {
    throw ConfigError(fmt::format("--held-out {} of {} leaves no document on one side; {}", share_,
                                  count_of(held_out_->document_count() + all_.document_count(),
                                           "document", "documents"),
                                  hint_on_documents),
                      TESSERA_HERE);
  }
  std::string replaced = replaced_text(all_.path());
  if (held_out_) {
    replaced += replaced_text(held_out_->path());
    held_out_->commit();
  }
  all_.commit();
  if (!replaced.empty()) {
    print_lines(replaced);
  }
  print(all_);
  if (held_out_) {
    print(*held_out_);
  }
  const TokenFile written(all_.path());
  print_lines(fmt::format("one pass over {} is {}, of which {} (train --epochs 1)\n",
                          written.path().string(),
                          count_of(written.token_count(), "token", "tokens"),
                          count_of(written.target_count(), "is a target", "are targets")));
}

bool Outputs::is_empty() const {
  return all_.token_count() == 0 && (!held_out_ || held_out_->token_count() == 0);
}

}  // namespace tessera::tokenize
