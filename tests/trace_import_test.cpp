#include "traces/trace_import.hpp"

#include <cstring>
#include <filesystem>

#include "base/error.hpp"
#include "base/random.hpp"
#include "tests/catch.hpp"
#include "tests/command.hpp"
#include "traces/trace_writer.hpp"

using namespace sparscale;
using namespace sparscale::traces;
using sparscale::tests::run_program;
using sparscale::tests::Scratch;
using sparscale::tests::slurp;
using sparscale::tests::spit;

namespace {

std::string bytes_of(const std::vector<float>& values) { return {reinterpret_cast<const char*>(values.data()), 4 * values.size()}; }

// As numpy.save() writes it.
std::string npy(const std::string& dictionary, const std::string& data, char version = 1) {
  std::string header = dictionary;
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  std::string file("\x93NUMPY");
  file += version;
  file += '\0';
  file += static_cast<char>(header.size() & 0xff);
  file += static_cast<char>(header.size() >> 8);
  return file + header + data;
}

std::string npy(const std::string& shape, const std::vector<float>& values) {
  return npy("{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ", }", bytes_of(values));
}

std::string safetensors(const std::vector<std::tuple<std::string, std::string, std::string>>& tensors) {  // name, dtype and shape, data
  std::string header, data;
  for (const auto& [name, type, content] : tensors) {
    header += (header.empty() ? "{\"" : ",\"") + name + "\":{" + type + ",\"data_offsets\":[" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + content.size()) + "]}";
    data += content;
  }
  header += "}";
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

std::vector<float> numbers(std::size_t count, float first = 1) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = first + static_cast<float>(i) / 7;
  return values;
}

const char* const two_layers = R"([{"name": "a", "shape": [2, 2]}, {"name": "b", "shape": [3]}])";

// "exit status; message"
std::string failure(const std::string& arguments) {
  const auto result = run_program("trace import " + arguments);
  return std::to_string(result.status) + "; " + result.err;
}

}  // namespace

TEST_CASE("A NumPy array becomes a trace") {
  const Scratch scratch("import");
  const std::vector<float> values = numbers(2 * 3 * 7);
  spit(scratch / "g.npy", npy("(2, 3, 7)", values));
  const Json description = parse_json(R"({"layers": [{"name": "a", "shape": [2, 2]}, {"name": "b", "shape": [3]}], "name": "given",
    "iterations": [40, 41], "learning_rate": [0.1, 0.2], "data_order": "stateful"})",
                                      "description");
  import_trace({scratch / "g.npy"}, description, "description", scratch / "t", false);
  const Trace trace = Trace::open(scratch / "t");
  trace.verify_checksums();
  CHECK(trace.info().name == "given");
  CHECK(trace.info().iterations == std::vector<std::int64_t>{40, 41});
  CHECK(trace.info().learning_rate == std::vector<double>{0.1, 0.2});
  CHECK(trace.info().data_order == "stateful");
  REQUIRE(trace.info().layers.size() == 2);
  CHECK(trace.info().layers[1].offset == 4);
  CHECK(trace.info().layers[1].shape == std::vector<std::int64_t>{3});
  REQUIRE((trace.iterations() == 2 && trace.workers() == 3 && trace.gradients() == 7));
  for (std::size_t t = 0; t < 2; ++t)
    for (std::size_t w = 0; w < 3; ++w)
      for (std::size_t i = 0; i < 7; ++i)
        CHECK(trace.gradient(static_cast<std::int64_t>(t), static_cast<std::int64_t>(w))[i] == values[(t * 3 + w) * 7 + i]);
}

TEST_CASE("Files of several workers follow each other, in any mixture of formats") {
  const Scratch scratch("import");
  const std::vector<float> first = numbers(2 * 7), second = numbers(2 * 2 * 7, 100);
  spit(scratch / "w0.npy", npy("(2, 7)", first));
  spit(scratch / "w1.safetensors", safetensors({{"grad", R"("dtype":"F32","shape":[2,2,7])", bytes_of(second)},
                                                {"scale", R"("dtype":"F32","shape":[2])", bytes_of({2, 4})}}));
  // 1.5 and -2 as halves.
  std::string halves;
  for (int i = 0; i < 2 * 7; ++i) halves += i % 2 == 0 ? std::string("\x00\x3e", 2) : std::string("\x00\xc0", 2);
  spit(scratch / "w3.npy", npy("{'descr': '<f2', 'fortran_order': False, 'shape': (2, 7)}", halves));
  spit(scratch / "layers.json", two_layers);
  const std::string files =
      (scratch / "w0.npy").string() + " " + (scratch / "w1.safetensors").string() + " " + (scratch / "w3.npy").string();
  const auto done =
      run_program("trace import " + files + " --layers " + (scratch / "layers.json").string() + " --out " + (scratch / "t").string());
  CHECK(done.err.empty());
  REQUIRE(done.status == 0);
  CHECK(run_program("trace verify " + (scratch / "t").string()).status == 0);
  const Trace trace = Trace::open(scratch / "t");
  CHECK(trace.info().name == "t");
  REQUIRE(trace.workers() == 4);
  CHECK(trace.gradient(1, 0)[2] == first[9]);
  CHECK(trace.gradient(0, 1)[3] == second[3] / 2);
  CHECK(trace.gradient(1, 2)[6] == second[27] / 4);
  CHECK(trace.gradient(1, 3)[0] == -2);
  CHECK(trace.gradient(1, 3)[1] == 1.5F);
}

TEST_CASE("A tensor per layer, in any order, with the layers' shapes") {
  const Scratch scratch("import");
  const std::vector<float> a = numbers(2 * 3 * 4), b = numbers(2 * 3 * 3, 50);
  spit(scratch / "g.safetensors",
       safetensors({{"b", R"("dtype":"F32","shape":[2,3,3])", bytes_of(b)}, {"a", R"("dtype":"F32","shape":[2,3,2,2])", bytes_of(a)}}));
  import_trace({scratch / "g.safetensors"}, parse_json(two_layers, "x"), "x", scratch / "t", false);
  const Trace trace = Trace::open(scratch / "t");
  for (std::size_t w = 0; w < 3; ++w) {
    const auto g = trace.gradient(1, static_cast<std::int64_t>(w));
    for (std::size_t i = 0; i < 4; ++i) CHECK(g[i] == a[(3 + w) * 4 + i]);
    for (std::size_t i = 0; i < 3; ++i) CHECK(g[4 + i] == b[(3 + w) * 3 + i]);
  }
}

TEST_CASE("Export and import give the trace back") {
  const Scratch scratch("import");
  for (const char* sample : {"digits-cnn-8w", "kjv-lstm-8w"})
    for (const char* extension : {"npy", "safetensors"}) {
      INFO(sample << " " << extension);
      const std::string file = (scratch / (std::string(sample) + "." + extension)).string(), folder = file + "-trace";
      const auto exported = run_program("trace export " + std::string(sample) + " --out " + file);
      CHECK(exported.err.empty());
      REQUIRE(exported.status == 0);
      const auto imported = run_program("trace import " + file + " --layers " + file + ".layers.json --out " + folder);
      CHECK(imported.err.empty());
      REQUIRE(imported.status == 0);
      const Trace original = Trace::open(std::filesystem::path(SPARSCALE_SOURCE_DIRECTORY) / "traces" / "samples" / sample);
      const Trace again = Trace::open(folder);
      again.verify_checksums();
      REQUIRE((original.workers() == again.workers() && original.iterations() == again.iterations()));
      bool same = true;
      for (std::int64_t t = 0; t < again.iterations(); ++t)
        for (std::int64_t w = 0; w < again.workers(); ++w)
          same = same && std::memcmp(original.gradient(t, w).data(), again.gradient(t, w).data(), again.gradient(t, w).size_bytes()) == 0;
      CHECK(same);
      Json before = original.info().manifest, after = again.info().manifest;
      before.erase("files");
      after.erase("files");
      CHECK(nlohmann::json(before) == nlohmann::json(after));
      CHECK_THAT(run_program("trace export " + std::string(sample) + " --out " + file).err, ContainsSubstring("would be overwritten"));
    }
  const auto wrong = run_program("trace export digits-cnn-8w --out " + (scratch / "g.csv").string());
  CHECK(wrong.status == 2);
  CHECK_THAT(wrong.err, ContainsSubstring("a file name that ends in .npy or .safetensors"));
}

TEST_CASE("Bad arrays and layer lists are refused in one line") {
  const Scratch scratch("import");
  spit(scratch / "layers.json", two_layers);
  const std::string layers = " --layers " + (scratch / "layers.json").string() + " --out " + (scratch / "t").string();
  int number = 0;
  const auto with = [&](const std::string& content, const std::string& extension = ".npy") {
    const auto file = scratch / ("f" + std::to_string(number++) + extension);
    spit(file, content);
    const std::string message = failure(file.string() + layers);
    CHECK(std::count(message.begin(), message.end(), '\n') == 1);
    CHECK_FALSE(std::filesystem::exists(scratch / "t"));
    return message;
  };
  const std::string data = bytes_of(numbers(14));
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 7), }";
  CHECK_THAT(with("short"), StartsWith("2; ") && ContainsSubstring("byte 0: expected a .npy file"));
  CHECK_THAT(with(npy(good, data, 2)), ContainsSubstring("byte 6: expected .npy format version 1, found version 2"));
  CHECK_THAT(with(npy(good, data).substr(0, 40)), ContainsSubstring("byte 8: expected a header length of at most 30"));
  CHECK_THAT(with(npy(good, data.substr(4))), ContainsSubstring("expected 56 bytes of data for F32 [2, 7], found 52"));
  CHECK_THAT(with(npy(good, data + "x")), ContainsSubstring("found 57"));
  CHECK_THAT(with(npy("{'descr': '>f4', 'fortran_order': False, 'shape': (2, 7), }", data)),
             ContainsSubstring("expected descr <f4 or <f2, found >f4"));
  CHECK_THAT(with(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 7), }", data)), ContainsSubstring("C order"));
  CHECK_THAT(with(npy("{'descr': '<f4', 'shape': (2, 7), }", data)), ContainsSubstring("descr, fortran_order and shape"));
  CHECK_THAT(with(npy("{'descr': '<f4', 'descr': '<f4', 'shape': (2, 7), }", data)), ContainsSubstring("once each"));
  CHECK_THAT(with(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, -7), }", data)),
             ContainsSubstring("expected a number, found -"));
  CHECK_THAT(with(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 7), }", data)),
             ContainsSubstring("below 2^63"));
  CHECK_THAT(with(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 7), }", data)), ContainsSubstring("2^64"));
  CHECK_THAT(with(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 7)", data)), ContainsSubstring("expected '}'"));
  CHECK_THAT(with(npy("(2, 7, 14)", numbers(196))),
             ContainsSubstring("expected [iterations, workers, 7] or [iterations, 7], found [2, 7, 14]"));
  CHECK_THAT(with(npy("(0, 7)", std::vector<float>{})), ContainsSubstring("found [0, 7]"));
  CHECK_THAT(with("x", ".csv"), ContainsSubstring("extension .npy or .safetensors"));
  CHECK_THAT(with(safetensors({{"a", R"("dtype":"F32","shape":[2,2,2])", bytes_of(numbers(8))}}), ".safetensors"),
             ContainsSubstring("one named \"b\""));
  CHECK_THAT(with(safetensors({{"grad", R"("dtype":"I32","shape":[2,7])", data}}), ".safetensors"), ContainsSubstring("F32, F16 or BF16"));
  CHECK_THAT(
      with(safetensors({{"grad", R"("dtype":"F32","shape":[2,7])", data}, {"scale", R"("dtype":"F32","shape":[2])", bytes_of({1, 0})}}),
           ".safetensors"),
      ContainsSubstring("finite scales > 0"));
  CHECK_THAT(failure((scratch / "none.npy").string() + layers), ContainsSubstring("none.npy: expected a readable file"));

  spit(scratch / "g.npy", npy("(2, 7)", numbers(14)));
  spit(scratch / "g3.npy", npy("(3, 7)", numbers(21)));
  CHECK_THAT(failure((scratch / "g.npy").string() + " " + (scratch / "g3.npy").string() + layers),
             ContainsSubstring("expected 2 iterations"));
  for (const auto& [text, message] :
       {std::pair<const char*, const char*>{"[]", "a list of layers"},
        {"{}", "the key \"layers\""},
        {R"([{"name": "a"}])", "an object with name and shape"},
        {R"([{"name": "a", "shape": [0]}])", "a list of integers >= 1"},
        {R"([{"name": "a", "shape": [3]}, {"name": "a", "shape": [4]}])", "every name once"},
        {R"([{"name": "a", "shape": [7], "size": 8}])", "expected 7, found 8"},
        {R"([{"name": "a", "shape": [9007199254740992, 9007199254740992]}])", "fewer than 2^63"},
        {R"({"layers": [{"name": "a", "shape": [7]}], "workers": 2})", "/workers: expected 1 as the arrays have"},
        {R"({"layers": [{"name": "a", "shape": [7]}], "iterations": [1]})", "/iterations: expected 2 iterations"},
        {R"({"layers": [{"name": "a", "shape": [7]}], "momentum": "much"})", "/momentum"}}) {
    spit(scratch / "bad.json", text);
    const std::string found =
        failure((scratch / "g.npy").string() + " --layers " + (scratch / "bad.json").string() + " --out " + (scratch / "t").string());
    CHECK_THAT(found, StartsWith("2; ") && ContainsSubstring(message));
    CHECK_FALSE(std::filesystem::exists(scratch / "t"));
  }
}
