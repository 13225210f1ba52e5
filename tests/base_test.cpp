#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "base/random.hpp"
#include "tests/catch.hpp"
#include "tests/command.hpp"

using namespace sparscale;

namespace {

std::string error_of(const std::string& document, const std::string& schema) {
  try {
    validate_json(parse_json(document, "d"), parse_json(schema, "s"), "file.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

const char* const schema = R"({"type":"object","additionalProperties":false,"required":["density"],
  "properties":{"density":{"$ref":"#/definitions/density"},
                "name":{"enum":["a","b"]},
                "sweep":{"anyOf":[{"$ref":"#/definitions/density"},{"type":"array","minItems":1,"items":{"$ref":"#/definitions/density"}}]},
                "list":{"type":"array","items":{"type":"object","additionalProperties":false,"properties":{"k":{"type":"integer","minimum":1}}}}},
  "definitions":{"density":{"type":"number","exclusiveMinimum":0,"maximum":1}}})";

}  // namespace

TEST_CASE("SHA-256 gives the published values") {
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST_CASE("A schema violation names pointer, expectation and finding") {
  CHECK(error_of(R"({"density":0.5,"sweep":[0.1,1]})", schema).empty());
  CHECK(error_of(R"({"density":0})", schema) == "file.json: /density: expected number > 0 <= 1, found 0");
  CHECK(error_of(R"({"density":"x"})", schema) == "file.json: /density: expected number > 0 <= 1, found \"x\"");
  CHECK(error_of(R"({"density":0.5,"sweep":[0.5,2]})", schema) == "file.json: /sweep/1: expected number > 0 <= 1, found 2");
  CHECK(error_of(R"({"density":0.5,"name":"c"})", schema) == "file.json: /name: expected one of a, b, found \"c\"");
  CHECK(error_of(R"({"name":"a"})", schema) == "file.json: /: expected the key \"density\", found no such key");
  CHECK(error_of(R"({"density":0.5,"extra":1})", schema) ==
        "file.json: /extra: expected one of the keys density, name, sweep, list, found the unknown key \"extra\"");
  CHECK(error_of(R"({"density":0.5,"list":[{"k":1},{"k":0}]})", schema) == "file.json: /list/1/k: expected integer >= 1, found 0");
}

TEST_CASE("Malformed JSON is refused with its place") {
  CHECK_THROWS_WITH(parse_json("{\"a\": 1,}", "x.json"), StartsWith("x.json: byte 9: expected JSON, found syntax error"));
  CHECK_THROWS_WITH(parse_json("{\"a\":{\"b\":1,\"b\":2}}", "x.json"),
                    "x.json: /a/b: expected each key once in an object, found this key twice");
}

TEST_CASE("Numbers beyond a double and text that is no JSON are refused in one line") {
  CHECK_THROWS_WITH(parse_json("{\"a\": 1e400}", "x.json"),
                    StartsWith("x.json: /a: expected numbers that a double can hold, found number overflow"));
  CHECK_THROWS_WITH(parse_json("{\"a/b\": [[0, {}], {\"c\": [1, 2, -1e400]}]}", "x.json"), StartsWith("x.json: /a~1b/1/c/2: "));
  CHECK_THROWS_WITH(parse_json("{\"a\": [{\"b\": 1}, {\"b\": 1, \"c\": 2, \"b\": 1}]}", "x.json"), StartsWith("x.json: /a/1/b: "));
  CHECK_THROWS_AS(parse_json("[1, 2", "x.json"), InputError);
  CHECK_THROWS_AS(parse_json("\xff", "x.json"), InputError);
  CHECK_THROWS_AS(parse_json("", "x.json"), InputError);
}

TEST_CASE("Numbers are written with the fewest digits that read back") {
  CHECK(number_text(0.1) == "0.1");
  CHECK(number_text(1e-9) == "1e-09");
  CHECK(number_text(std::nan("")) == "nan");
}

TEST_CASE("Products that do not fit are refused") {
  CHECK(checked_multiply(1U << 31, 1U << 31, "n x N") == 1ULL << 62);
  CHECK_THROWS_AS(checked_multiply(1ULL << 40, 1ULL << 40, "n x N"), InputError);
}

TEST_CASE("Random streams depend on their names only and permutations are permutations") {
  Random a(stream_key(1, "x", {1, 2})), b(stream_key(1, "x", {1, 2})), c(stream_key(1, "x", {2, 1}));
  const auto first = a.next();
  CHECK(first == b.next());
  CHECK(first != c.next());
  const auto order = random_permutation(1000, a);
  CHECK(std::set<std::int64_t>(order.begin(), order.end()).size() == 1000);
  double sum = 0, squares = 0;
  for (int i = 0; i < 100000; ++i) {
    const double x = a.normal();
    sum += x;
    squares += x * x;
  }
  CHECK(std::abs(sum / 1e5) < 0.02);
  CHECK(std::abs(squares / 1e5 - 1) < 0.03);
}

TEST_CASE("Files are replaced whole") {
  const tests::Scratch folder("base");
  write_file_atomic(folder / "a" / "b.txt", "one");
  write_file_atomic(folder / "a" / "b.txt", "two");
  CHECK(read_file(folder / "a" / "b.txt") == "two");
  CHECK(sha256_hex_of_file(folder / "a" / "b.txt") == sha256_hex("two"));
  CHECK_THROWS_AS(read_file(folder / "missing"), InputError);
  CHECK_THROWS_AS(read_file(folder.path()), InputError);
}

TEST_CASE("A file is written through a link, and a pipe or device takes the bytes itself") {
  namespace fs = std::filesystem;
  const tests::Scratch scratch("write");
  fs::create_directories(scratch / "there");
  fs::create_symlink("there/target", scratch / "link");
  fs::create_symlink("link", scratch / "to_link");
  for (const char* content : {"made", "replaced"}) {
    write_file_atomic(scratch / "to_link", content);
    CHECK(read_file(scratch / "there/target") == content);
    CHECK(fs::is_symlink(scratch / "link"));
    CHECK(fs::is_symlink(scratch / "to_link"));
  }
  fs::create_symlink("round", scratch / "round");
  CHECK_THROWS_WITH(write_file_atomic(scratch / "round", "x"), ContainsSubstring("cannot write "));

  const std::string pipe = (scratch / "pipe").string();
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  REQUIRE(reader >= 0);
  write_file_atomic(pipe, "through");
  char buffer[16] = {};
  CHECK(::read(reader, buffer, sizeof buffer) == 7);
  CHECK(std::string(buffer) == "through");
  ::close(reader);
  CHECK(fs::is_fifo(pipe));

  CHECK_THROWS_WITH(write_file_atomic(scratch.path(), "x"), ContainsSubstring("cannot write "));
  std::size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(scratch.path())) ++entries;
  CHECK(entries == 5);  // nothing temporary is left
}

TEST_CASE("What cannot be looked at is not there") {
  CHECK(path_exists(std::filesystem::temp_directory_path()));
  CHECK_FALSE(path_exists("/no/such/file"));
  CHECK_FALSE(path_exists(std::string(100000, 'a')));
}
