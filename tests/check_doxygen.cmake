# Fails where doxygen warns of a comment in a header (Doxyfile). Skipped where there is no doxygen.
#
#   cmake -DROOT=repository -DSCRATCH=folder -P tests/check_doxygen.cmake
cmake_minimum_required(VERSION 3.25)
if(NOT ROOT OR NOT SCRATCH)
  message(FATAL_ERROR "give the repository and a folder: cmake -DROOT=folder -DSCRATCH=folder -P check_doxygen.cmake")
endif()
find_program(DOXYGEN doxygen)
if(NOT DOXYGEN)
  message(STATUS "skipped: there is no doxygen here")
  return()
endif()

file(MAKE_DIRECTORY "${SCRATCH}")
file(READ "${ROOT}/Doxyfile" settings)
file(WRITE "${SCRATCH}/Doxyfile" "${settings}\nOUTPUT_DIRECTORY = \"${SCRATCH}\"\n")
execute_process(COMMAND ${DOXYGEN} "${SCRATCH}/Doxyfile" WORKING_DIRECTORY "${ROOT}"
                RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE warnings)
file(GLOB pages "${SCRATCH}/html/*.html")
list(LENGTH pages count)
if(NOT status EQUAL 0 OR count LESS 100)
  message(FATAL_ERROR "doxygen ended with ${status} and wrote ${count} pages:\n${warnings}")
endif()
if(warnings)
  message(NOTICE "${warnings}")
  message(FATAL_ERROR "doxygen warns of these comments: put what is not plain text in backticks")
endif()
message(STATUS "doxygen wrote ${count} pages without a warning")
