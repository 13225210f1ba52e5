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
