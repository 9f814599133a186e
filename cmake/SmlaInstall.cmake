# Headers, the shared library, the tool, the static library (component static), a CMake package
# (find_package(smla) defines smla::smla and smla::smla_static), a pkg-config file, license and examples.
# All paths are relative to the prefix, so an installed tree can be moved.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/smla)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/smla DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(TARGETS smla EXPORT smlaTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT smlaTargets NAMESPACE smla:: DESTINATION ${package_dir})
if(TARGET smla_tool)
    install(TARGETS smla_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples DESTINATION ${CMAKE_INSTALL_DOCDIR}
        FILES_MATCHING PATTERN "*.c" PATTERN "*.cpp" PATTERN "python" EXCLUDE PATTERN "traces" EXCLUDE)

# The static library (component static): one object file whose only global names are the C ABI.
if(NOT SMLA_CUDA AND NOT SMLA_SANITIZE AND NOT SMLA_FUZZ)
    set(archive ${PROJECT_BINARY_DIR}/static/libsmla.a)
    add_custom_command(OUTPUT ${archive}
        COMMAND ${CMAKE_COMMAND} -E make_directory static
        COMMAND ${CMAKE_LINKER} -r --force-group-allocation -o static/smla.o $<TARGET_OBJECTS:smla_objects>
        COMMAND ${CMAKE_OBJCOPY} --wildcard --keep-global-symbol=smla_* static/smla.o
        COMMAND ${CMAKE_COMMAND} -E rm -f ${archive}
        COMMAND ${CMAKE_AR} qcs ${archive} static/smla.o
        DEPENDS smla_objects $<TARGET_OBJECTS:smla_objects>
        WORKING_DIRECTORY ${PROJECT_BINARY_DIR} COMMAND_EXPAND_LISTS VERBATIM)
    add_custom_target(smla_archive ALL DEPENDS ${archive})
    install(FILES ${archive} DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT static)
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/smlaConfig.cmake.in smlaConfig.cmake
                              INSTALL_DESTINATION ${package_dir}
                              PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
# Before 1.0 a minor version may change the ABI.
write_basic_package_version_file(smlaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/smlaConfig.cmake ${PROJECT_BINARY_DIR}/smlaConfigVersion.cmake
        DESTINATION ${package_dir})

file(RELATIVE_PATH SMLA_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(${PROJECT_SOURCE_DIR}/cmake/smla.pc.in smla.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/smla.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# A wheel holds one file of each, without links: the library is loaded by path.
if(SMLA_PYTHON)
    install(FILES $<TARGET_FILE:smla_python> DESTINATION smla/lib COMPONENT python)
    install(PROGRAMS $<TARGET_FILE:smla_python_tool> DESTINATION smla/bin COMPONENT python)
endif()
