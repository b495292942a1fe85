# tessera_cudnn: cuDNN and the headers of cudnn-frontend. tessera_nccl: NCCL. Neither has a CMake package
# everywhere; they are in the toolkit's folders, in the system's, or where *_ROOT says.
# NAMES_PER_DIR: wheels have libcudnn.so.9 alone, and the folder that *_ROOT names comes first.
set(cuda_include_hints ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_LIBRARY_ROOT}/include)
set(cuda_library_hints ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}/lib64
                       ${CUDAToolkit_LIBRARY_ROOT}/lib)

find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDNN_ROOT}/include ${cuda_include_hints})
find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 NAMES_PER_DIR
             HINTS ${CUDNN_ROOT}/lib ${CUDNN_ROOT}/lib64 ${cuda_library_hints})
if(NOT CUDNN_INCLUDE_DIR OR NOT CUDNN_LIBRARY)
  message(FATAL_ERROR "TESSERA_CUDA=ON needs cuDNN 9 (cudnn.h, libcudnn.so): not found in the toolkit's "
                      "folders (${CUDAToolkit_LIBRARY_ROOT}); set -DCUDNN_ROOT=FOLDER")
endif()

# Headers only, from NVIDIA's package on PyPI; jobs/get-cudnn-frontend.sh puts them where they are found.
find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h
          HINTS ${CMAKE_SOURCE_DIR}/build-deps/cudnn-frontend/include
                ${CMAKE_BINARY_DIR}/cudnn-frontend/include ${cuda_include_hints})
if(NOT CUDNN_FRONTEND_INCLUDE_DIR)
  message(FATAL_ERROR "TESSERA_CUDA=ON needs the headers of cudnn-frontend (cudnn_frontend.h): run "
                      "'bash jobs/get-cudnn-frontend.sh', or set -DCUDNN_FRONTEND_INCLUDE_DIR=FOLDER")
endif()
file(STRINGS ${CUDNN_FRONTEND_INCLUDE_DIR}/cudnn_frontend_version.h version_lines
     REGEX "define CUDNN_FRONTEND_(MAJOR|MINOR)_VERSION")
string(REGEX MATCHALL "[0-9]+" version_numbers "${version_lines}")
list(JOIN version_numbers "." CUDNN_FRONTEND_VERSION)
# set_generate_stats came with 1.13; from 1.19 on the headers need libnvrtc linked.
if(CUDNN_FRONTEND_VERSION VERSION_LESS 1.13 OR CUDNN_FRONTEND_VERSION VERSION_GREATER 1.18)
  message(FATAL_ERROR "cudnn-frontend ${CUDNN_FRONTEND_VERSION} in ${CUDNN_FRONTEND_INCLUDE_DIR} is outside "
                      "1.13 to 1.18: run 'bash jobs/get-cudnn-frontend.sh' and configure afresh")
endif()

find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${NCCL_ROOT}/include ${cuda_include_hints})
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR
             HINTS ${NCCL_ROOT}/lib ${NCCL_ROOT}/lib64 ${cuda_library_hints})
if(NOT NCCL_INCLUDE_DIR OR NOT NCCL_LIBRARY)
  message(FATAL_ERROR "TESSERA_CUDA=ON needs NCCL (nccl.h, libnccl.so): not found in the toolkit's folders "
                      "(${CUDAToolkit_LIBRARY_ROOT}); set -DNCCL_ROOT=FOLDER")
endif()

add_library(tessera_cudnn INTERFACE)
target_include_directories(tessera_cudnn SYSTEM INTERFACE ${CUDNN_FRONTEND_INCLUDE_DIR}
                           ${CUDNN_INCLUDE_DIR})
target_link_libraries(tessera_cudnn INTERFACE ${CUDNN_LIBRARY})
add_library(tessera_nccl INTERFACE)
target_include_directories(tessera_nccl SYSTEM INTERFACE ${NCCL_INCLUDE_DIR})
target_link_libraries(tessera_nccl INTERFACE ${NCCL_LIBRARY})
message(STATUS "cuDNN: ${CUDNN_LIBRARY}; cudnn-frontend ${CUDNN_FRONTEND_VERSION}; NCCL: ${NCCL_LIBRARY}")
