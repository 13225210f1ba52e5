// Catch2 2.13 and 3 under one name.
#pragma once

#if SPARSCALE_CATCH_MAJOR >= 3
#include <catch2/catch_all.hpp>
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;
#else
#include <catch2/catch.hpp>
inline auto ContainsSubstring(const std::string& text) { return Catch::Contains(text); }
using Catch::StartsWith;
#endif

#include <cstdio>

/// Leaves a test that cannot run here; ctest then reports it as skipped (tests/CMakeLists.txt).
#if SPARSCALE_CATCH_MAJOR >= 3
#define SPARSCALE_SKIP(reason)              \
  do {                                      \
    std::printf("SKIPPED: %s\n", (reason)); \
    SKIP(reason);                           \
  } while (false)
#else
#define SPARSCALE_SKIP(reason)              \
  do {                                      \
    std::printf("SKIPPED: %s\n", (reason)); \
    return;                                 \
  } while (false)
#endif
