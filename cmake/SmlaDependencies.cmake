# What the distribution provides. Header-only packages serve every architecture; compiled ones exist for the
# host only, so fmt is taken header-only, and a cross build compiles GoogleTest from libgtest-dev's sources.
find_package(Threads REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
if(SMLA_PORTABLE)
    add_link_options(-static-libstdc++ -s)
endif()

# For the files of a wheel, which then need only glibc 2.28, whatever glibc they are linked with.
add_library(smla_old_glibc INTERFACE)
include(CheckCSourceCompiles)
check_c_source_compiles("#include <features.h>
#if !defined(__GLIBC__) || !defined(__x86_64__)
#error no glibc of x86-64
#endif
int main(void) { return 0; }" SMLA_GLIBC_X86_64)
if(SMLA_GLIBC_X86_64)
    target_sources(smla_old_glibc INTERFACE ${PROJECT_SOURCE_DIR}/cmake/glibc_2_28.c)
    target_compile_definitions(smla_old_glibc INTERFACE $<$<BOOL:${SMLA_CUDA}>:SMLA_OLD_GLIBC_CUDA>)
    target_link_options(smla_old_glibc INTERFACE
        LINKER:--push-state,--no-as-needed,-l:libpthread.so.0,-l:libdl.so.2,-l:librt.so.1,--pop-state)
endif()

if(SMLA_TOOLS OR SMLA_FUZZ)
    find_package(CLI11 REQUIRED)
    # In every build, so that a wheel finds the tool's objects in the compiler cache.
    find_path(SMLA_FMT_INCLUDE fmt/format.h REQUIRED NO_CMAKE_FIND_ROOT_PATH)
    add_library(fmt::fmt INTERFACE IMPORTED GLOBAL)
    target_compile_definitions(fmt::fmt INTERFACE FMT_HEADER_ONLY)
    target_include_directories(fmt::fmt INTERFACE ${SMLA_FMT_INCLUDE})
endif()

if(SMLA_TESTS AND CMAKE_CROSSCOMPILING)
    set(BUILD_GMOCK OFF)
    set(INSTALL_GTEST OFF)
    add_subdirectory(/usr/src/googletest ${PROJECT_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
    foreach(name gtest gtest_main)
        target_compile_options(${name} PRIVATE -w)  # not our warnings
        if(NOT TARGET GTest::${name})
            add_library(GTest::${name} ALIAS ${name})
        endif()
    endforeach()
elseif(SMLA_TESTS)
    find_package(GTest REQUIRED)
endif()
