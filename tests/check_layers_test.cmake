# check_layers.cmake must find planted violations: each is put alone into a small tree of its own that
# is otherwise clean, and must be named with its line.
#
#   cmake -DCHECK=check_layers.cmake -DSCRATCH=folder -P tests/check_layers_test.cmake
cmake_minimum_required(VERSION 3.25)

# Runs the check on a tree whose one interesting file has a clean include on line 2 and `line` on line 3.
function(run_check file line status_variable output_variable)
  file(REMOVE_RECURSE "${SCRATCH}")
  foreach(header kernels/gemm.h kernels/cuda/launch.h kernels/device/stream.h kernels/base/error.h
                 collectives/communicator.h model/transformer.h model/param_layout.h
                 optim/grad_norm.h runtime/run/trainer.h tests/support/bounds.h)
    file(WRITE "${SCRATCH}/${header}" "#pragma once\n")
  endforeach()
  file(WRITE "${SCRATCH}/${file}" "// planted\n#include <vector>\n${line}\n")
  execute_process(COMMAND ${CMAKE_COMMAND} "-DROOT=${SCRATCH}" -P "${CHECK}"
                  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  file(REMOVE_RECURSE "${SCRATCH}")
  set(${status_variable} "${status}" PARENT_SCOPE)
  set(${output_variable} "${output}" PARENT_SCOPE)
endfunction()

function(expect_refused file line)
  run_check("${file}" "${line}" status output)
  string(FIND "${output}" "${file}:3: ${line}: " at)
  if(status EQUAL 0 OR at EQUAL -1)
    message(SEND_ERROR "'${line}' in ${file} was not refused:\n${output}")
  endif()
endfunction()

function(expect_allowed file line)
  run_check("${file}" "${line}" status output)
  if(NOT status EQUAL 0)
    message(SEND_ERROR "'${line}' in ${file} was refused:\n${output}")
  endif()
endfunction()

expect_refused(kernels/device/arena.cpp "#include \"kernels/gemm.h\"")
expect_refused(kernels/base/error.cpp "#include \"kernels/device/stream.h\"")
expect_refused(kernels/reduction.cpp "#include \"model/transformer.h\"")
expect_refused(kernels/reduction.cpp "#include \"gemm.h\"")
expect_refused(kernels/gemm.cpp "#include \"kernels/cuda/launch.h\"")
expect_refused(kernels/gemm.cpp "#include <cuda_runtime.h>")
expect_refused(kernels/gemm.cpp "#include <dnnl.h>")
expect_refused(kernels/gemm.cpp "#if TESSERA_CUDA")
expect_refused(collectives/communicator.cpp "#include \"model/param_layout.h\"")
expect_refused(collectives/communicator.cpp "#include <mpi.h>")
expect_refused(collectives/mpi_session.cpp "#include <nccl.h>")
expect_refused(model/transformer.cpp "#include \"collectives/communicator.h\"")
expect_refused(optim/grad_norm.cpp "#include \"model/transformer.h\"")
expect_refused(optim/grad_norm.cpp "#  include  \"runtime/run/trainer.h\"")
expect_refused(runtime/run/trainer.cpp "#include <hdf5.h>")
expect_refused(runtime/run/trainer.cpp "#include <boost/program_options.hpp>")
expect_refused(runtime/run/trainer.cpp "#include <boost/json.hpp>")
expect_refused(jobs/train.cpp "#include \"tests/support/bounds.h\"")

expect_allowed(kernels/device/stream.cpp "#include \"kernels/base/error.h\"")
expect_allowed(kernels/cuda/gemm.cu "#include <cublasLt.h>")
expect_allowed(kernels/cpu/gemm.cpp "#include <dnnl.h>")
expect_allowed(collectives/mpi_session.cpp "#include <mpi.h>")
expect_allowed(collectives/nccl_communicator.cpp "#include <nccl.h>")
expect_allowed(optim/grad_norm.cpp "#include \"model/param_layout.h\"")
expect_allowed(runtime/data/token_file.cpp "#include <hdf5.h>")
expect_allowed(runtime/run/options.cpp "#include <boost/program_options.hpp>")
expect_allowed(jobs/train.cpp "#include \"runtime/run/trainer.h\"")
expect_allowed(tests/runtime/run/trainer_test.cpp "#include <mpi.h>")
