# Programs find again what they were linked with, and what that needs in turn: a library unpacked in a
# user's prefix does not say where its own lie. So the old DT_RPATH, which holds for those too, with all
# library folders of CMAKE_PREFIX_PATH (the variable and the environment's).
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
add_link_options(LINKER:--disable-new-dtags)
cmake_path(CONVERT "$ENV{CMAKE_PREFIX_PATH}" TO_CMAKE_PATH_LIST environment_prefixes)
foreach(prefix IN LISTS CMAKE_PREFIX_PATH environment_prefixes)
  foreach(folder lib lib64 lib/${CMAKE_LIBRARY_ARCHITECTURE})
    if(IS_DIRECTORY "${prefix}/${folder}")
      list(APPEND CMAKE_INSTALL_RPATH ${prefix}/${folder})
    endif()
  endforeach()
endforeach()
list(REMOVE_DUPLICATES CMAKE_INSTALL_RPATH)
