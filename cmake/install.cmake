# cmake --install, find_package(sparscale) and the Debian package. The program finds its data beside itself (../share/sparscale), so that an
# installed tree can be moved.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(generated ${PROJECT_BINARY_DIR}/install)
set(shell_files ${generated}/sparscale.bash ${generated}/_sparscale ${generated}/sparscale.fish ${generated}/sparscale.1)
set(schema_files)
set(schema_commands)
foreach(schema experiment platform profile trace)
  list(APPEND schema_files ${generated}/${schema}.schema.json)
  list(APPEND schema_commands COMMAND sparscale schema ${schema} > ${generated}/${schema}.schema.json)
endforeach()
file(MAKE_DIRECTORY ${generated})
add_custom_command(OUTPUT ${shell_files} ${schema_files}
  COMMAND sparscale completion bash > ${generated}/sparscale.bash
  COMMAND sparscale completion zsh > ${generated}/_sparscale
  COMMAND sparscale completion fish > ${generated}/sparscale.fish
  COMMAND sparscale completion man > ${generated}/sparscale.1
  ${schema_commands}
  DEPENDS sparscale VERBATIM)
add_custom_target(sparscale_shell_files ALL DEPENDS ${shell_files} ${schema_files})

install(TARGETS sparscale RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(SPARSCALE_HAVE_MPI)
  install(TARGETS sparscale_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/sparscale)
endif()
set(data ${CMAKE_INSTALL_DATADIR}/sparscale)
install(DIRECTORY platforms/catalogue DESTINATION ${data}/platforms)
install(DIRECTORY kernels/profiles DESTINATION ${data}/kernels)
install(DIRECTORY traces/samples traces/models traces/capture DESTINATION ${data}/traces PATTERN __pycache__ EXCLUDE)
install(DIRECTORY experiments/ DESTINATION ${data}/experiments FILES_MATCHING PATTERN "*.json" PATTERN "*.csv"
  PATTERN commands EXCLUDE PATTERN "*.schema.json" EXCLUDE)
install(DIRECTORY analysis DESTINATION ${data} PATTERN __pycache__ EXCLUDE)
install(FILES ${schema_files} DESTINATION ${data}/schemas)
install(FILES ${generated}/sparscale.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME sparscale)
install(FILES ${generated}/_sparscale DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
install(FILES ${generated}/sparscale.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
install(FILES ${generated}/sparscale.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES README.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The libraries, for programs that bring a sparsifier or a collective of their own.
set(libraries sparscale_base sparscale_kernels sparscale_traces sparscale_platforms sparscale_sim)
if(SPARSCALE_HAVE_CUDA)
  list(APPEND libraries sparscale_cuda)
endif()
foreach(library IN LISTS libraries)
  string(REPLACE "sparscale_" "" short ${library})
  set_target_properties(${library} PROPERTIES EXPORT_NAME ${short})
endforeach()
install(TARGETS ${libraries} EXPORT sparscale ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
foreach(layer base kernels traces platforms sim)
  install(DIRECTORY ${layer}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sparscale/${layer} FILES_MATCHING PATTERN "*.hpp"
    PATTERN bench EXCLUDE PATTERN cuda EXCLUDE PATTERN catalogue EXCLUDE PATTERN profiles EXCLUDE PATTERN samples EXCLUDE PATTERN models EXCLUDE
    PATTERN capture EXCLUDE)
endforeach()
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/sparscale)
install(EXPORT sparscale NAMESPACE sparscale:: FILE sparscale-targets.cmake DESTINATION ${package})
configure_package_config_file(cmake/sparscale-config.cmake.in ${generated}/sparscale-config.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(${generated}/sparscale-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${generated}/sparscale-config.cmake ${generated}/sparscale-config-version.cmake DESTINATION ${package})

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME sparscale)
set(CPACK_PACKAGE_CONTACT "The sparscale authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "python3-matplotlib, python3-numpy")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "slurm-client, libsimgrid-dev, nlohmann-json3-dev, libssl-dev")
include(CPack)
