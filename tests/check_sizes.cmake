# Fails on a source file that has grown too long to be read at once:
#
#   a program (jobs/*.cpp; the folders below jobs/ aside)       300 lines
#   any other source file of the product                        700 lines
#
#   cmake -DROOT=repository -P tests/check_sizes.cmake
cmake_minimum_required(VERSION 3.25)
if(NOT ROOT)
  message(FATAL_ERROR "give the repository: cmake -DROOT=folder -P check_sizes.cmake")
endif()

set(program_limit 300)
set(limit 700)

set(checked 0)
set(too_long "")
foreach(folder kernels collectives model optim runtime jobs)
  file(GLOB_RECURSE files RELATIVE "${ROOT}" "${ROOT}/${folder}/*.h" "${ROOT}/${folder}/*.cpp"
       "${ROOT}/${folder}/*.cu" "${ROOT}/${folder}/*.cuh")
  foreach(file IN LISTS files)
    math(EXPR checked "${checked} + 1")
    set(most ${limit})
    if(file MATCHES "^jobs/[^/]*\\.cpp$")
      set(most ${program_limit})
    endif()
    file(READ "${ROOT}/${file}" text)
    string(REGEX REPLACE "[^\n]" "" newlines "${text}")
    string(LENGTH "${newlines}" lines)
    if(lines GREATER most)
      list(APPEND too_long "${file}: ${lines} lines, at most ${most}")
    endif()
  endforeach()
endforeach()
if(checked EQUAL 0)
  message(FATAL_ERROR "${ROOT} holds no sources")
endif()
if(too_long)
  list(JOIN too_long "\n  " shown)
  message(NOTICE "  ${shown}")
  message(FATAL_ERROR "split these files at a natural seam")
endif()
message(STATUS "${checked} files are short enough")
