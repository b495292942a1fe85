// Every field of a manifest is refused by its name when its value is out of range, though every
// checksum is right: the fields are walked as they stand in the file, so that a new one is met too.
#include <functional>
#include <set>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>

#include "kernels/base/error.h"
#include "runtime/hdf5/hdf5_file.h"
#include "tests/runtime/checkpoint/saves.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

constexpr std::int64_t kHuge = std::int64_t{1} << 62U;
const char* const kNoText = "\x01 x";

/// A checkpoint whose manifest can be edited, with the checksums made right again.
class Edited {
 public:
  explicit Edited(Index version = kCheckpointVersion) {
    if (version == kCheckpointVersion) {
      folder_ = save(run_.path(), SaveOptions{}).folder;
    } else {  // written by 839538f
      const std::filesystem::path step = step_folder_name(3);
      folder_ = run_ / step.string();
      std::filesystem::copy(
          std::filesystem::path(std::getenv("TESSERA_GOLDEN")) / "checkpoint-v1" / step, folder_);
    }
    original_ = slurp(manifest());
    sums_ = slurp(folder_ / kChecksumsName);
  }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  [[nodiscard]] std::filesystem::path manifest() const { return folder_ / kManifestName; }

  using Edit = std::function<void(hid_t file)>;
  /// The refusal of the checkpoint after the edit, which is then undone.
  StepFolder after(const Edit& edit) {
    spill(manifest(), original_);
    {
      prepare_hdf5();
      const Hdf5Handle file(H5Fopen(manifest().c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
      BOOST_REQUIRE(file.get() >= 0);
      edit(file.get());
    }
    const std::string changed = slurp(manifest());
    Checksums sums = parse_checksums(sums_, "");
    sums.manifest_bytes = changed.size();
    sums.manifest_hash = xxh3_128(bytes_of(changed));
    spill(folder_ / kChecksumsName, sums.to_text());
    return check_step(folder_, CheckDepth::headers);
  }

 private:
  TempFolder run_;
  std::filesystem::path folder_;
  std::string original_;
  std::string sums_;
};

struct Field {
  std::string table;  // empty: an attribute
  std::string name;
  H5T_class_t kind;
  bool is_signed;
  std::size_t bytes;
  std::size_t rows;
};

Hdf5Handle closing(hid_t id, Hdf5Handle::Close close) {
  BOOST_REQUIRE(id >= 0);
  return {id, close};
}

std::vector<Field> attributes_of(hid_t file) {
  std::vector<Field> fields;
  H5O_info_t info = {};
  BOOST_REQUIRE(H5Oget_info(file, &info) >= 0);
  for (hsize_t i = 0; i < info.num_attrs; ++i) {
    const Hdf5Handle attribute =
        closing(H5Aopen_by_idx(file, ".", H5_INDEX_NAME, H5_ITER_INC, i, H5P_DEFAULT, H5P_DEFAULT),
                H5Aclose);
    std::string name(static_cast<std::size_t>(H5Aget_name(attribute.get(), 0, nullptr)), '\0');
    H5Aget_name(attribute.get(), name.size() + 1, name.data());
    const Hdf5Handle type = closing(H5Aget_type(attribute.get()), H5Tclose);
    const H5T_class_t kind = H5Tget_class(type.get());
    fields.push_back({"", name, kind, kind == H5T_INTEGER && H5Tget_sign(type.get()) == H5T_SGN_2,
                      H5Tget_size(type.get()), 1});
  }
  return fields;
}

std::vector<Field> columns_of(hid_t file, const std::string& table) {
  const Hdf5Handle dataset = closing(H5Dopen2(file, table.c_str(), H5P_DEFAULT), H5Dclose);
  const Hdf5Handle type = closing(H5Dget_type(dataset.get()), H5Tclose);
  const Hdf5Handle space = closing(H5Dget_space(dataset.get()), H5Sclose);
  std::vector<Field> fields;
  for (int i = 0; i < H5Tget_nmembers(type.get()); ++i) {
    const auto number = static_cast<unsigned>(i);
    char* name = H5Tget_member_name(type.get(), number);
    const Hdf5Handle member = closing(H5Tget_member_type(type.get(), number), H5Tclose);
    const H5T_class_t kind = H5Tget_class(member.get());
    fields.push_back({table, name, kind,
                      kind != H5T_INTEGER || H5Tget_sign(member.get()) == H5T_SGN_2,
                      H5Tget_size(member.get()),
                      static_cast<std::size_t>(H5Sget_simple_extent_npoints(space.get()))});
    H5free_memory(name);
  }
  return fields;
}

void put_attribute(hid_t file, const std::string& name, std::int64_t value) {
  BOOST_REQUIRE(H5Adelete(file, name.c_str()) >= 0);
  write_hdf5_integer(file, name, value, name);
}

void put_attribute(hid_t file, const std::string& name, const std::string& value) {
  BOOST_REQUIRE(H5Adelete(file, name.c_str()) >= 0);
  write_hdf5_string(file, name, value, name);
}

void put_unsigned(hid_t file, const std::string& name, std::uint64_t value) {
  const Hdf5Handle attribute = closing(H5Aopen(file, name.c_str(), H5P_DEFAULT), H5Aclose);
  BOOST_REQUIRE(H5Awrite(attribute.get(), H5T_NATIVE_UINT64, &value) >= 0);
}

/// Changes one field of one row: `change` gets its bytes as they are in the file.
void put_cell(hid_t file, const Field& field, std::size_t row,
              const std::function<void(std::span<char> cell)>& change) {
  const Hdf5Handle dataset = closing(H5Dopen2(file, field.table.c_str(), H5P_DEFAULT), H5Dclose);
  const Hdf5Handle whole = closing(H5Dget_type(dataset.get()), H5Tclose);
  const int member = H5Tget_member_index(whole.get(), field.name.c_str());
  const Hdf5Handle type =
      closing(H5Tget_member_type(whole.get(), static_cast<unsigned>(member)), H5Tclose);
  const Hdf5Handle column = closing(H5Tcreate(H5T_COMPOUND, field.bytes), H5Tclose);
  BOOST_REQUIRE(H5Tinsert(column.get(), field.name.c_str(), 0, type.get()) >= 0);
  std::vector<char> values(field.rows * field.bytes);
  BOOST_REQUIRE(
      H5Dread(dataset.get(), column.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
  change(std::span(values).subspan(row * field.bytes, field.bytes));
  BOOST_REQUIRE(
      H5Dwrite(dataset.get(), column.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
}

void require_refused(Edited& edited, const Field& field, const std::string& what,
                     const Edited::Edit& edit) {
  const StepFolder found = edited.after(edit);
  BOOST_TEST_CONTEXT(field.table << " " << field.name << " " << what << ": " << found.reason) {
    BOOST_TEST(state_name(found.state) == "invalid");
    BOOST_TEST(found.reason.find(field.name) != std::string::npos);
  }
}

// Of either version that is read.
void require_attributes_refused(Edited& edited, std::size_t count) {
  std::vector<Field> fields;
  BOOST_TEST(state_name(edited.after([&](hid_t file) { fields = attributes_of(file); }).state) ==
             "complete");
  BOOST_TEST(fields.size() == count);
  for (const Field& field : fields) {
    if (field.kind == H5T_STRING) {
      require_refused(edited, field, "no text",
                      [&](hid_t file) { put_attribute(file, field.name, kNoText); });
      require_refused(edited, field, "a number",
                      [&](hid_t file) { put_attribute(file, field.name, 1); });
      continue;
    }
    for (const std::int64_t value : {std::int64_t{-5}, std::int64_t{-1}}) {
      require_refused(edited, field, std::to_string(value),
                      [&](hid_t file) { put_attribute(file, field.name, value); });
    }
    require_refused(edited, field, "a text",
                    [&](hid_t file) { put_attribute(file, field.name, "1"); });
    if (field.name == "seed") {
      continue;  // any number of 64 bits is one
    }
    require_refused(edited, field, "2^62", [&](hid_t file) {
      if (field.is_signed) {
        put_attribute(file, field.name, kHuge);
      } else {
        put_unsigned(file, field.name, static_cast<std::uint64_t>(kHuge));
      }
    });
  }
}

// Every column of every table that the file has.
void require_columns_refused(Edited& edited, const std::vector<std::string>& tables) {
  for (const std::string& table : tables) {
    std::vector<Field> fields;
    static_cast<void>(edited.after([&](hid_t file) { fields = columns_of(file, table); }));
    BOOST_TEST(fields.size() >= 5U);
    for (const Field& field : fields) {
      for (const std::size_t row : {std::size_t{0}, field.rows - 1}) {
        if (field.kind == H5T_STRING) {
          require_refused(edited, field, "of another name", [&](hid_t file) {
            put_cell(file, field, row,
                     [](std::span<char> cell) { cell[0] = cell[0] == 'z' ? 'y' : 'z'; });
          });
          continue;
        }
        for (const std::int64_t value : {std::int64_t{-5}, kHuge}) {
          require_refused(edited, field, std::to_string(value), [&](hid_t file) {
            put_cell(file, field, row,
                     [&](std::span<char> cell) { std::memcpy(cell.data(), &value, sizeof value); });
          });
        }
        if (field.name.starts_with("nonfinite_exp_avg")) {
          continue;  // nobody else knows how many there are
        }
        const StepFolder found = edited.after([&](hid_t file) {
          put_cell(file, field, row, [](std::span<char> cell) {
            std::int64_t value = 0;
            std::memcpy(&value, cell.data(), sizeof value);
            ++value;
            std::memcpy(cell.data(), &value, sizeof value);
          });
        });
        BOOST_TEST(state_name(found.state) == "invalid",
                   field.table << " " << field.name << " one more in row " << row);
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE(manifest)

BOOST_AUTO_TEST_CASE(every_attribute_out_of_range_is_refused_by_name) {
  Edited now;
  require_attributes_refused(now, 30);
  Edited first(1);
  require_attributes_refused(first, 24);
}

BOOST_AUTO_TEST_CASE(every_field_of_every_table_is_refused_by_name) {
  Edited now;
  require_columns_refused(now, {"/table", "/shards", "/slices", "/arrays"});
  Edited first(1);
  require_columns_refused(first, {"/shards"});
}

// What a later program may write, and this one must not read as something else.
BOOST_AUTO_TEST_CASE(what_this_program_does_not_know_is_refused_with_its_value) {
  Edited edited;
  const auto reported = [&](const Edited::Edit& edit) {
    const std::string reason = edited.after(edit).reason;
    BOOST_TEST(reason.starts_with(edited.manifest().string() + ": "), reason);
    return reason.substr(edited.manifest().string().size() + 2);
  };
  const auto attribute = [&](const std::string& name, const std::string& value) {
    return reported([&](hid_t file) { put_attribute(file, name, value); });
  };
  BOOST_TEST(attribute("optimizer", "lion") ==
             "optimizer is 'lion'; this program reads " + optimizer_names() + " and none");
  BOOST_TEST(attribute("moments", "fp4") ==
             "moments is 'fp4'; this program reads 'f32', 'bf16' and '8bit'");
  BOOST_TEST(attribute("moments", "bf16").starts_with("rounding_seed is 'none'; this program "));
  BOOST_TEST(attribute("rounding_seed", "7") == "rounding_seed is '7'; this program reads 'none'");
  BOOST_TEST(attribute("optimizer", "none") == "moments is 'f32'; this program reads 'none'");
  const auto cell = [&](const std::string& column, const std::string& text) {
    return reported([&](hid_t file) {
      for (const Field& field : columns_of(file, "/arrays")) {
        if (field.name == column) {
          put_cell(file, field, 1, [&](std::span<char> value) {
            std::ranges::fill(value, '\0');
            std::copy_n(text.begin(), std::min(text.size(), value.size() - 1), value.begin());
          });
        }
      }
    });
  };
  BOOST_TEST(cell("dtype", "u8") == "dtype of row 1 of /arrays (exp_avg) is 'u8'; for optimizer "
                                    "adamw this program reads 'f32'");
  BOOST_TEST(cell("name", "exp_max") == "name of row 1 of /arrays (exp_avg) is 'exp_max'; for "
                                        "optimizer adamw this program reads 'exp_avg'");
  BOOST_TEST(cell("code", "nf4") == "code of row 1 of /arrays (exp_avg) is 'nf4'; for optimizer "
                                    "adamw this program reads 'none'");
  BOOST_TEST(cell("scale_dtype", "f32") == "scale_dtype of row 1 of /arrays (exp_avg) is 'f32'; "
                                           "for optimizer adamw this program reads 'none'");
}

BOOST_AUTO_TEST_CASE(version_1_is_read_as_it_was_written) {
  const Edited first(1);
  CheckpointReader reader(first.folder());
  BOOST_TEST(reader.info().version == 1);
  BOOST_TEST((reader.info().optimizer == OptimizerKind::adamw));
  BOOST_TEST(reader.arrays().size() == 3U);
  reader.verify();
}

BOOST_AUTO_TEST_CASE(the_message_gives_value_and_range) {
  Edited edited;
  const auto reported = [&](const std::string& field, std::int64_t value) {
    const std::string reason =
        edited.after([&](hid_t file) { put_attribute(file, field, value); }).reason;
    BOOST_TEST(reason.starts_with(edited.manifest().string() + ": "), reason);
    return reason.substr(edited.manifest().string().size() + 2);
  };
  BOOST_TEST(reported("updates", -5) == "updates is -5; it must be from 0 to 42");
  BOOST_TEST(reported("updates", kHuge) ==
             "updates is 4611686018427387904; it must be from 0 to 42");
  BOOST_TEST(reported("updates", 0) ==
             "updates is 0, but exp_avg of shard-00000-of-00002.h5 is not "
             "zero: it must be from 1 to 42");
  BOOST_TEST(reported("windows_taken", -4) ==
             "windows_taken is -4; it must be from 42 to 90194313216");
  BOOST_TEST(reported("skipped", 1) == "skipped is 1; it must be 0");
}

BOOST_AUTO_TEST_CASE(no_update_yet_is_a_state_whose_moments_are_zero) {
  const TempFolder run;
  SaveOptions options;
  WriteRequest request{run.path(), info_of(options), options.table,
                       [](StateArray array, const ParamRow&, Index, std::span<float> values) {
                         std::fill(values.begin(), values.end(),
                                   array == StateArray::master ? 1.0F : 0.0F);
                       }};
  request.info.updates = 0;
  request.info.skipped = 40;  // and two steps without a target
  const StepFolder found = check_step(write_checkpoint(request).folder, CheckDepth::blocks);
  BOOST_TEST(state_name(found.state) == "complete", found.reason);
}

BOOST_AUTO_TEST_CASE(an_invalid_step_is_not_passed_over_for_an_older_one) {
  const TempFolder run;
  SaveOptions options;
  options.step = 1;
  static_cast<void>(save(run.path(), options));
  options.step = 2;
  const std::filesystem::path two = save(run.path(), options).folder;
  std::filesystem::rename(two, run / step_folder_name(3));
  BOOST_CHECK_EXCEPTION(
      static_cast<void>(newest_whole(run.path())), FormatError, [](const FormatError& error) {
        return error.message().find("step-00000003 is invalid: ") != std::string::npos;
      });
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
