# Fails on a source file that clang-format would change. Another version of clang-format than that of
# .clang-format formats differently, so without it the check is skipped.
#
#   cmake -DROOT=repository -P tests/check_format.cmake
cmake_minimum_required(VERSION 3.25)
set(version 14)
find_program(CLANG_FORMAT NAMES clang-format-${version} clang-format)
if(CLANG_FORMAT)
  execute_process(COMMAND ${CLANG_FORMAT} --version OUTPUT_VARIABLE found)
endif()
if(NOT CLANG_FORMAT OR NOT found MATCHES "version ${version}\\.")
  message(STATUS "skipped: there is no clang-format ${version} here")
  return()
endif()

set(files "")
foreach(folder kernels collectives model optim runtime jobs tests)
  file(GLOB_RECURSE found_files "${ROOT}/${folder}/*.h" "${ROOT}/${folder}/*.cpp"
       "${ROOT}/${folder}/*.cu" "${ROOT}/${folder}/*.cuh")
  list(APPEND files ${found_files})
endforeach()
execute_process(COMMAND ${CLANG_FORMAT} --dry-run -Werror ${files}
                RESULT_VARIABLE status ERROR_VARIABLE output)
if(NOT status EQUAL 0)
  string(REGEX MATCHALL "[^\n:]+:[0-9]+:[0-9]+: error: code" places "${output}")
  list(TRANSFORM places REPLACE ":[0-9]+:[0-9]+: error: code" "")
  list(REMOVE_DUPLICATES places)
  list(JOIN places "\n  " shown)
  message(NOTICE "  ${shown}\nrun clang-format -i on these files")
  message(FATAL_ERROR "not formatted as .clang-format says")
endif()
