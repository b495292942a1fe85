// Damage of every kind is named by `verify` and by reading, and never gives a wrong number.
#include <numeric>
#include <random>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "runtime/hdf5/hdf5_file.h"
#include "tests/runtime/checkpoint/saves.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

/// Two units of a few numbers: files of some kilobytes, of which every byte can be tried.
ParamTable tiny_table() {
  return {{{"a", 17}, {"b", 3}},
          {{"a.weight", "a", 0, Shape{3, 5}, {}},
           {"a.bias", "a", 15, Shape{2}, {}},
           {"b.weight", "b", 0, Shape{3}, {}},
           {"c.weight", "b", 0, Shape{3}, "b.weight"}}};
}

/// All that `verify` says of a folder: one line a damage, "" if it is whole.
std::string damage_of(const std::filesystem::path& folder) {
  try {
    CheckpointReader reader(folder);
    return fmt::format("{}", fmt::join(reader.find_damage(), "\n"));
  } catch (const FormatError& error) {
    return error.message();
  }
}

/// The error of reading everything as three ranks; "" if there was none, whatever was read.
std::string load_error_of(const std::filesystem::path& folder, const ParamTable& table) {
  try {
    CheckpointReader reader(folder);
    const std::string difference = compare(reader, table, 3, reader.info().step);
    BOOST_TEST(difference == "", "wrong numbers without an error: " << difference);
    return {};
  } catch (const FormatError& error) {
    return error.message();
  }
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// The message of the exception that `work` throws; "" if there is none.
template <typename Kind, typename Work>
std::string error_of(Work work) {
  try {
    work();
  } catch (const Kind& error) {
    return error.message();
  }
  return {};
}

/// A file in whose place there is one that the system refuses to open, for root too: a link to
/// itself.
class MadeUnreadable {
 public:
  explicit MadeUnreadable(std::filesystem::path file) : file_(std::move(file)) { unread(); }
  ~MadeUnreadable() { repair(); }
  MadeUnreadable(const MadeUnreadable&) = delete;
  MadeUnreadable& operator=(const MadeUnreadable&) = delete;

  void unread() const {
    if (!std::filesystem::is_symlink(file_)) {
      std::filesystem::rename(file_, aside());
      std::filesystem::create_symlink(file_.filename(), file_);
    }
  }
  void repair() const {
    if (std::filesystem::is_symlink(file_)) {
      std::filesystem::rename(aside(), file_);
    }
  }

 private:
  [[nodiscard]] std::filesystem::path aside() const { return file_.string() + ".aside"; }
  std::filesystem::path file_;
};

void require_named(const std::filesystem::path& folder, const ParamTable& table,
                   const std::string& file, const std::string& what) {
  const std::string verified = damage_of(folder);
  BOOST_REQUIRE_MESSAGE(verified.find(file) != std::string::npos,
                        what << ": verify says '" << verified << "'");
  const std::string loaded = load_error_of(folder, table);
  BOOST_REQUIRE_MESSAGE(loaded.find(file) != std::string::npos,
                        what << ": load says '" << loaded << "'");
}

/// Changes one bit of each `stride`-th byte of a file, one at a time.
void flip_bytes(const std::filesystem::path& folder, const ParamTable& table,
                const std::string& file, std::size_t stride) {
  const std::string content = slurp(folder / file);
  File open_file = File::open_write(folder / file);
  for (std::size_t i = 0; i < content.size(); i += stride) {
    const auto changed =
        static_cast<char>(static_cast<unsigned char>(content[i]) ^ (1U << (i % 8)));
    open_file.write_at(i, bytes_of({&changed, 1}));
    require_named(folder, table, file, fmt::format("byte {} of {} changed", i, file));
    open_file.write_at(i, bytes_of({&content[i], 1}));
  }
}

class TinySave {
 public:
  TinySave() {
    options_.table = tiny_table();
    options_.step = 7;
    folder_ = save(run_.path(), options_).folder;
  }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  [[nodiscard]] const SaveOptions& options() const { return options_; }
  void require_named(const std::string& file, const std::string& what) const {
    test::require_named(folder_, options_.table, file, what);
  }
  [[nodiscard]] std::filesystem::path shard() const { return folder_ / shard_name(); }
  [[nodiscard]] static std::string shard_name() { return shard_file_name(0, 2); }

 private:
  TempFolder run_;
  SaveOptions options_;
  std::filesystem::path folder_;
};

BOOST_AUTO_TEST_SUITE(damage)

BOOST_AUTO_TEST_CASE(every_changed_byte_of_a_small_checkpoint_is_named) {
  const TinySave tiny;
  // TESSERA_EVERY_BYTE=1 tries all of the shard's bytes too, which takes a minute.
  const std::size_t stride = std::getenv("TESSERA_EVERY_BYTE") != nullptr ? 1 : 29;
  flip_bytes(tiny.folder(), tiny.options().table, std::string(kChecksumsName), 1);
  flip_bytes(tiny.folder(), tiny.options().table, std::string(kManifestName), 1);
  flip_bytes(tiny.folder(), tiny.options().table, TinySave::shard_name(), stride);
  BOOST_TEST(damage_of(tiny.folder()) == "");
  BOOST_TEST(load_error_of(tiny.folder(), tiny.options().table) == "");
}

BOOST_AUTO_TEST_CASE(a_changed_byte_of_a_large_array_is_named_with_its_block_and_parameters) {
  const TempFolder run;
  SaveOptions options;
  options.table = small_table(200001, 24);  // 4.8 M elements: two blocks
  options.world_size = 1;
  options.piece = 1 << 18;
  const std::filesystem::path folder = save(run.path(), options).folder;
  const std::filesystem::path shard = folder / shard_file_name(0, 1);
  const Checksums sums = parse_checksums(slurp(folder / kChecksumsName), "CHECKSUMS");
  File file = File::open_write(shard);
  std::mt19937_64 random(11);
  constexpr int kPlaces = 12;
  for (int i = 0; i < kPlaces; ++i) {
    const StateLayout arrays = state_layout(OptimizerKind::adamw);
    const std::size_t array = static_cast<std::size_t>(i) % arrays.size();
    const StateArray which = arrays.arrays()[array].array;
    const ByteRange range = sums.shards[0].arrays[array];
    const std::uint64_t place = random() % range.bytes;
    std::byte original{};
    file.read_at(range.offset + place, std::span(&original, 1));
    const std::byte changed = original ^ std::byte{4};
    file.write_at(range.offset + place, std::span(&changed, 1));
    const std::string damage = damage_of(folder);
    const std::uint64_t block = place / kBlockBytes;
    BOOST_TEST(damage.find(fmt::format("block {} of /zero/{}", block, array_name(which))) !=
                   std::string::npos,
               damage);
    BOOST_TEST(damage.find("embedding.weight") != std::string::npos, damage);
    BOOST_TEST((damage.find("and 13 more") != std::string::npos) == (block == 1), damage);
    BOOST_TEST(damage.find('\n') == std::string::npos, damage);
    BOOST_TEST(load_error_of(folder, options.table) == damage);
    // What does not touch the block is still read.
    CheckpointReader reader(folder);
    std::vector<float> values(10);
    const Index elsewhere = block == 0 ? kBlockElements : 0;
    reader.read(which, "embedding", elsewhere, values);
    file.write_at(range.offset + place, std::span(&original, 1));
  }
  BOOST_TEST(damage_of(folder) == "");
}

BOOST_AUTO_TEST_CASE(a_truncated_file_is_named) {
  const TinySave tiny;
  for (const std::string& file :
       {TinySave::shard_name(), std::string(kManifestName), std::string(kChecksumsName)}) {
    const std::string content = slurp(tiny.folder() / file);
    for (const std::size_t size : {content.size() - 1, content.size() / 2, std::size_t{0}}) {
      spill(tiny.folder() / file, content.substr(0, size));
      tiny.require_named(file, fmt::format("{} cut to {} bytes", file, size));
    }
    spill(tiny.folder() / file, content + '\0');
    tiny.require_named(file, file + " with a byte more");
    spill(tiny.folder() / file, content);
  }
}

BOOST_AUTO_TEST_CASE(a_missing_or_unreadable_file_is_named) {
  const TinySave tiny;
  for (const std::string& file :
       {TinySave::shard_name(), std::string(kManifestName), std::string(kChecksumsName)}) {
    const std::filesystem::path path = tiny.folder() / file;
    const std::string content = slurp(path);
    std::filesystem::remove(path);
    tiny.require_named(file, file + " removed");
    const StepFolder found = check_step(tiny.folder(), CheckDepth::files);
    BOOST_TEST(state_name(found.state) == "incomplete");
    BOOST_TEST(found.reason == file + " is missing");
    std::filesystem::create_directory(path);
    tiny.require_named(file, file + " a folder");
    std::filesystem::remove(path);
    spill(path, content);
    if (::geteuid() != 0) {  // root reads everything
      std::filesystem::permissions(path, std::filesystem::perms::none);
      tiny.require_named(file, file + " unreadable");
      std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_shard_or_manifest_of_another_save_is_named) {
  const TinySave tiny;
  const TinySave other;
  for (const std::string& file : {TinySave::shard_name(), std::string(kManifestName)}) {
    const std::string content = slurp(tiny.folder() / file);
    const std::string foreign = slurp(other.folder() / file);
    BOOST_TEST(content.size() == foreign.size());
    spill(tiny.folder() / file, foreign);
    tiny.require_named(file, file + " of another save");
    spill(tiny.folder() / file, content);
  }
}

BOOST_AUTO_TEST_CASE(a_shard_that_matches_checksums_but_not_the_manifest_is_named) {
  // Someone exchanged a shard and "repaired" CHECKSUMS.
  const TinySave tiny;
  const TinySave other;
  spill(tiny.shard(), slurp(other.shard()));
  Checksums sums = parse_checksums(slurp(tiny.folder() / kChecksumsName), "");
  sums.shards[0] = parse_checksums(slurp(other.folder() / kChecksumsName), "").shards[0];
  spill(tiny.folder() / kChecksumsName, sums.to_text());
  tiny.require_named(TinySave::shard_name(), "a foreign shard with its checksum");
}

BOOST_AUTO_TEST_CASE(another_version_is_refused_by_name) {
  const TinySave tiny;
  const std::filesystem::path path = tiny.folder() / kChecksumsName;
  const std::filesystem::path manifest = tiny.folder() / kManifestName;
  const std::string text = slurp(path);
  const std::string first = std::string(kCheckpointFormat) + " ";
  const auto rename_version = [&](Index version) {
    const Hdf5Handle file(H5Fopen(manifest.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    BOOST_REQUIRE(H5Adelete(file.get(), "version") >= 0);
    write_hdf5_integer(file.get(), "version", version, manifest);
  };
  for (const Index version : {0, 3}) {
    spill(path, fmt::format("{}{}{}", first, version, text.substr(first.size() + 1)));
    const std::string expected = fmt::format(
        "checkpoint version {} is not known; this program reads versions 1 to 2", version);
    BOOST_TEST(damage_of(tiny.folder()) == path.string() + ": " + expected);
    rename_version(version);
    const std::string changed = slurp(manifest);
    Checksums sums = parse_checksums(text, "");
    sums.manifest_bytes = changed.size();
    sums.manifest_hash = xxh3_128(bytes_of(changed));
    spill(path, sums.to_text());
    BOOST_TEST(damage_of(tiny.folder()) == manifest.string() + ": " + expected);
    BOOST_TEST(load_error_of(tiny.folder(), tiny.options().table) ==
               manifest.string() + ": " + expected);
  }
  // Version 1 is known, but this is none of it.
  Checksums sums = parse_checksums(slurp(path), "");
  sums.version = 1;
  rename_version(2);
  const std::string changed = slurp(manifest);
  sums.manifest_bytes = changed.size();
  sums.manifest_hash = xxh3_128(bytes_of(changed));
  spill(path, sums.to_text());
  BOOST_TEST(contains(damage_of(tiny.folder()), "version, save_id or world_size are not those of"));
}

BOOST_AUTO_TEST_CASE(all_damages_are_listed) {
  const TinySave tiny;
  const Checksums sums = parse_checksums(slurp(tiny.folder() / kChecksumsName), "");
  std::string content = slurp(tiny.shard());
  content[sums.shards[0].arrays[0].offset] ^= 1;
  content[sums.shards[0].arrays[2].offset] ^= 1;
  spill(tiny.shard(), content);
  CheckpointReader reader(tiny.folder());
  const std::vector<std::string> damages = reader.find_damage();
  BOOST_REQUIRE_EQUAL(damages.size(), 2U);
  BOOST_TEST(damages[0] ==
             tiny.shard().string() +
                 " is damaged: block 0 of /zero/master (elements 0 to 19) does not match its "
                 "checksum; it holds a.weight, a.bias, b.weight, c.weight");
  BOOST_CHECK_THROW(reader.verify(), FormatError);
}

BOOST_AUTO_TEST_CASE(a_run_falls_back_to_the_step_before_and_says_so) {
  const TempFolder run;
  SaveOptions options;
  options.table = tiny_table();
  for (const Index step : {1, 2, 3, 4}) {
    options.step = step;
    static_cast<void>(save(run.path(), options));
  }
  const auto shard_of = [&](Index step) {
    return run / step_folder_name(step) / shard_file_name(1, 2);
  };
  std::filesystem::remove(shard_of(4));
  const Checksums sums =
      parse_checksums(slurp(run / step_folder_name(3) / std::string(kChecksumsName)), "");
  std::string content = slurp(shard_of(3));
  content[sums.shards[1].file_bytes - 1] ^= 1;
  BOOST_REQUIRE(sums.shards[1].arrays[0].bytes == 0);  // all of it is header
  spill(shard_of(3), content);
  std::string data = slurp(run / step_folder_name(2) / shard_file_name(0, 2));
  data[sums.shards[0].arrays[1].offset] ^= 1;
  spill(run / step_folder_name(2) / shard_file_name(0, 2), data);

  std::vector<std::string> passed_over;
  const auto report = [&](const StepFolder& folder) {
    passed_over.push_back(fmt::format("{} {}", folder.step, state_name(folder.state)));
    BOOST_TEST(!folder.reason.empty());
  };
  const auto whole = newest_whole(run.path(), report);
  BOOST_REQUIRE(whole);
  BOOST_TEST(whole->step == 1);
  const std::vector<std::string> expected = {"4 incomplete", "3 damaged", "2 damaged"};
  BOOST_TEST(passed_over == expected, boost::test_tools::per_element());

  // The last one goes as well: then there is no step, and that is not the same as none.
  std::filesystem::remove(shard_of(1));
  const std::string message =
      error_of<FormatError>([&] { static_cast<void>(newest_whole(run.path())); });
  BOOST_TEST(contains(message, "holds 4 steps, but none that can be loaded"), message);
  for (const Index step : {1, 2, 3, 4}) {
    BOOST_TEST(contains(message, step_folder_name(step)), message);
  }
}

// What was saved can be brought back: nothing proves that it is lost.
BOOST_AUTO_TEST_CASE(a_step_that_is_there_in_another_form_is_never_passed_over) {
  const TempFolder run;
  SaveOptions options;
  options.table = tiny_table();
  for (const Index step : {1, 2}) {
    options.step = step;
    static_cast<void>(save(run.path(), options));
  }
  const std::filesystem::path folder = run / step_folder_name(2);
  const std::filesystem::path away = run / "away";
  const auto state = [&] { return state_name(check_step(folder, CheckDepth::headers).state); };
  for (const std::string& file :
       {shard_file_name(1, 2), std::string(kManifestName), std::string(kChecksumsName)}) {
    BOOST_TEST_CONTEXT(file) {
      std::filesystem::rename(folder / file, away);
      std::filesystem::create_symlink("/not/mounted", folder / file);
      BOOST_TEST(state() == "unreadable");
      std::filesystem::remove(folder / file);
      spill(folder / (file + ".gz"), "x");
      BOOST_TEST(state() == "invalid");
      std::filesystem::remove(folder / (file + ".gz"));
      if (file != kChecksumsName) {
        spill(folder / file, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n");
        BOOST_TEST(state() == "invalid");
        BOOST_CHECK_THROW(static_cast<void>(newest_whole(run.path())), FormatError);
        std::filesystem::remove(folder / file);
      }
      BOOST_TEST(state() == "incomplete");
      std::filesystem::rename(away, folder / file);
      BOOST_TEST(state() == "complete");
    }
  }
  std::filesystem::rename(folder, away);
  std::filesystem::create_symlink("/not/mounted", folder);
  BOOST_TEST(state() == "unreadable");
}

BOOST_AUTO_TEST_CASE(a_step_that_cannot_be_read_is_never_passed_over) {
  const TempFolder run;
  SaveOptions options;
  options.table = tiny_table();
  for (const Index step : {1, 2}) {
    options.step = step;
    static_cast<void>(save(run.path(), options));
  }
  const std::filesystem::path folder = run / step_folder_name(2);
  for (const std::string& file :
       {shard_file_name(1, 2), std::string(kManifestName), std::string(kChecksumsName)}) {
    const MadeUnreadable broken(folder / file);
    BOOST_TEST(state_name(check_step(folder, CheckDepth::headers).state) == "unreadable");
    const std::string message =
        error_of<ReadError>([&] { static_cast<void>(newest_whole(run.path())); });
    BOOST_TEST(contains(message, file + ": Too many levels of symbolic links"), message);
    ReadRetry none(std::chrono::milliseconds{0});
    BOOST_CHECK_THROW(static_cast<void>(supersede_after(run.path(), 1, none)), ReadError);
    const std::vector<std::string> names = {"LATEST", step_folder_name(1), step_folder_name(2)};
    BOOST_TEST(names_in(run.path()) == names, boost::test_tools::per_element());
  }
  BOOST_TEST(newest_whole(run.path())->step == 2);
}

BOOST_AUTO_TEST_CASE(reads_that_recover_within_the_time_succeed) {
  const TinySave tiny;
  const MadeUnreadable broken(tiny.shard());
  std::vector<std::chrono::milliseconds> pauses;
  constexpr std::chrono::milliseconds kLimit{1'000};
  const auto looked_at = [&](std::size_t recovers_after) {
    pauses.clear();
    broken.unread();
    ReadRetry retry(kLimit, [&](std::chrono::milliseconds pause) {
      pauses.push_back(pause);
      if (pauses.size() == recovers_after) {
        broken.repair();
      }
    });
    return tessera::check_step(tiny.folder(), CheckDepth::blocks, retry);
  };
  BOOST_TEST(state_name(looked_at(3).state) == "complete");
  BOOST_TEST(pauses.size() == 3U);
  const StepFolder found = looked_at(1000);
  BOOST_TEST(state_name(found.state) == "unreadable");
  BOOST_TEST(contains(found.reason, "(tried for 1 s)"), found.reason);
  BOOST_TEST(
      (std::accumulate(pauses.begin(), pauses.end(), std::chrono::milliseconds{0}) == kLimit));
}

// The property of which all of this is the reason: whatever byte of whatever file is changed in all
// steps, nothing counts as a step, and nothing is renamed or deleted.
BOOST_AUTO_TEST_CASE(steps_that_are_all_damaged_stay_and_are_not_taken_for_none) {
  const TempFolder run;
  SaveOptions options;
  options.table = tiny_table();
  for (const Index step : {1, 2, 3}) {
    options.step = step;
    static_cast<void>(save(run.path(), options));
  }
  const std::vector<std::string> names = names_in(run.path());
  const std::filesystem::path first = run / step_folder_name(1);
  for (const std::string& file : names_in(first)) {
    const std::size_t bytes = slurp(first / file).size();
    const std::size_t regions = std::min<std::size_t>(bytes, 48);
    for (std::size_t region = 0; region < regions; ++region) {
      const auto flip = [&] {
        for (const Index step : {1, 2, 3}) {
          const std::filesystem::path path = run / step_folder_name(step) / file;
          const std::size_t place = region * (slurp(path).size() - 1) / regions;
          File open_file = File::open_write(path);
          std::byte value{};
          open_file.read_at(place, {&value, 1});
          value ^= std::byte{2};
          open_file.write_at(place, {&value, 1});
        }
      };
      flip();
      BOOST_TEST_CONTEXT(file << " region " << region) {
        BOOST_CHECK_THROW(static_cast<void>(newest_whole(run.path())), FormatError);
        VerifiedSteps nothing_known;
        const RetentionResult kept = apply_retention(run.path(), {1, 0}, 3, nothing_known);
        BOOST_TEST(kept.removed.empty());
        BOOST_TEST(names_in(run.path()) == names, boost::test_tools::per_element());
      }
      flip();
    }
  }
  BOOST_TEST(newest_whole(run.path())->step == 3);
}

BOOST_AUTO_TEST_CASE(retention_counts_and_removes_only_what_it_has_seen_whole) {
  const TempFolder run;
  SaveOptions options;
  options.table = tiny_table();
  const auto save_step = [&](Index step, const RetentionOptions& retention) {
    options.step = step;
    options.retention = retention;
    return save(run.path(), options);
  };
  for (const Index step : {1, 2, 3}) {
    static_cast<void>(save_step(step, {9, 0}));
  }
  const auto flip_data = [&](Index step) {
    const std::filesystem::path folder = run / step_folder_name(step);
    const Checksums sums = parse_checksums(slurp(folder / kChecksumsName), "");
    std::string content = slurp(folder / shard_file_name(0, 2));
    content[sums.shards[0].arrays[1].offset] ^= 1;
    spill(folder / shard_file_name(0, 2), content);
  };
  flip_data(3);
  // 3 does not count: 4 and 2 are the two newest
  CommitResult result = save_step(4, {2, 0});
  BOOST_TEST(result.removed == std::vector<Index>{1}, boost::test_tools::per_element());
  BOOST_REQUIRE_EQUAL(result.problems.size(), 1U);
  BOOST_TEST(contains(result.problems[0], "step-00000003 is damaged"), result.problems[0]);
  BOOST_TEST(contains(result.problems[0], "it stays, and does not count for --keep"));
  {
    const MadeUnreadable broken(run / step_folder_name(2) / shard_file_name(1, 2));
    BOOST_TEST(save_step(5, {1, 0}).removed == std::vector<Index>{4},
               boost::test_tools::per_element());
  }
  const std::vector<std::string> names = {"LATEST", step_folder_name(2), step_folder_name(3),
                                          step_folder_name(5)};
  BOOST_TEST(names_in(run.path()) == names, boost::test_tools::per_element());
  // What this process has seen whole is not read again, until someone touches it.
  VerifiedSteps verified;
  std::optional<std::string> problem;
  const std::filesystem::path five = run / step_folder_name(5);
  verified.remember(five, VerifiedSteps::fingerprint(five));
  BOOST_TEST(verified.is_whole(five, problem));
  flip_data(5);
  BOOST_TEST(!verified.is_whole(five, problem));
  BOOST_TEST(problem.has_value());
}

BOOST_AUTO_TEST_CASE(a_folder_under_the_name_of_another_step_is_invalid) {
  const TempFolder run;
  SaveOptions options;
  options.table = tiny_table();
  options.step = 5;
  std::filesystem::rename(save(run.path(), options).folder, run / step_folder_name(6));
  const StepFolder found = check_step(run / step_folder_name(6), CheckDepth::headers);
  BOOST_TEST(state_name(found.state) == "invalid");  // renamed by someone, not damaged
  BOOST_TEST(found.reason == "the folder is called step-00000006, the manifest is of step 5");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
