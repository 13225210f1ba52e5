// The documentation names everything that there is.
#include <algorithm>

#include "base/files.hpp"
#include "experiments/experiment.hpp"
#include "experiments/results.hpp"
#include "sim/collective.hpp"
#include "sim/sparsifier.hpp"
#include "tests/catch.hpp"
#include "tests/command.hpp"

using namespace sparscale;

namespace {
std::string page(const std::string& name) { return read_file(std::filesystem::path(SPARSCALE_SOURCE_DIRECTORY) / name); }
}  // namespace

TEST_CASE("Every field of an experiment is documented") {
  const std::string text = page("docs/experiments.md");
  for (const auto& [key, rule] : experiments::experiment_schema().at("properties").items())
    CHECK_THAT(text, ContainsSubstring("`" + key + "`"));
}

TEST_CASE("Every column of the results is documented") {
  const std::string text = page("docs/results.md");
  for (const experiments::Column& column : experiments::result_columns()) CHECK_THAT(text, ContainsSubstring("`" + column.name + "`"));
}

TEST_CASE("Every sparsifier and collective is documented") {
  for (const sim::SparsifierInfo& info : sim::sparsifiers())
    CHECK_THAT(page("docs/sparsifiers.md"), ContainsSubstring("`" + info.name + "`"));
  for (const sim::CollectiveAlgorithm& algorithm : sim::collective_algorithms())
    CHECK_THAT(page("docs/collectives.md"), ContainsSubstring("`" + algorithm.name + "`"));
}

TEST_CASE("The page of the collectives holds what the program prints about every one") {
  const tests::CommandResult printed = tests::run_program("list collectives");
  REQUIRE(printed.status == 0);
  CHECK(std::count(printed.out.begin(), printed.out.end(), '\n') == std::ssize(sim::collective_algorithms()));
  INFO("bring docs/collectives.md up to date: scripts/update-reference.sh PATH-TO/sparscale");
  CHECK(page("docs/collectives.md").find("\n```text\n" + printed.out + "```\n") != std::string::npos);
}

TEST_CASE("Pages that the README names exist") {
  const std::string readme = page("README.md");
  std::size_t found = 0;
  for (std::size_t at = readme.find("docs/"); at != std::string::npos; at = readme.find("docs/", at + 1)) {
    std::string name = readme.substr(at, readme.find_first_of(" `|),;:\n", at) - at);
    if (name.ends_with(".")) name.pop_back();  // of the sentence
    INFO(name);
    CHECK(std::filesystem::exists(std::filesystem::path(SPARSCALE_SOURCE_DIRECTORY) / name));
    ++found;
  }
  CHECK(found >= 10);
}
