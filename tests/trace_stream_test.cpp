#include "traces/trace_stream.hpp"

#include <filesystem>

#include "base/error.hpp"
#include "tests/catch.hpp"
#include "tests/command.hpp"
#include "traces/trace.hpp"

using namespace sparscale;
using namespace sparscale::traces;
using sparscale::tests::CommandResult;
using sparscale::tests::Scratch;
using sparscale::tests::slurp;
using sparscale::tests::spit;

namespace {

std::string framed(const Json& json) {
  const std::string text = json.dump();
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + text;
}

Json head_of(const Trace& trace) {
  Json head = trace.info().manifest;
  head.erase("files");
  head.erase("iterations");
  return head;
}

std::string frame_of(const Trace& trace, std::int64_t t) {
  std::string frame = framed({{"iteration", trace.info().iterations[static_cast<std::size_t>(t)]}});
  for (std::int64_t w = 0; w < trace.workers(); ++w) {
    const auto g = trace.gradient(t, w);
    frame.append(reinterpret_cast<const char*>(g.data()), g.size_bytes());
  }
  return frame;
}

std::string stream_of(const Trace& trace) {
  std::string stream = framed(head_of(trace));
  for (std::int64_t t = 0; t < trace.iterations(); ++t) stream += frame_of(trace, t);
  return stream + std::string(8, '\0');
}

// `sparscale ARGUMENTS < content`
CommandResult piped(const Scratch& scratch, const std::string& content, const std::string& arguments) {
  spit(scratch / "in", content);
  const std::string command = "cat '" + (scratch / "in").string() + "' | '" + SPARSCALE_PROGRAM + "' " + arguments + " >'" +
                              (scratch / "out").string() + "' 2>'" + (scratch / "err").string() + "'";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), slurp(scratch / "out"), slurp(scratch / "err")};
}

Trace sample(const char* name) { return Trace::open(std::filesystem::path(SPARSCALE_SOURCE_DIRECTORY) / "traces" / "samples" / name); }

}  // namespace

TEST_CASE("A stream gives the records of the trace, byte by byte") {
  const Scratch scratch("stream");
  for (const char* name : {"digits-cnn-8w", "kjv-lstm-8w"})
    for (const char* sparsifier : {"topk", "exdyna", "deft"})
      for (const char* options :
           {" --workers 8 --hashes", " --workers 5 --density 0.001 --warmup 2", " --workers 8 --iterations 3 --warmup 1"}) {
        INFO(name << " " << sparsifier << options);
        const std::string rest = std::string(" --sparsifier ") + sparsifier + options;
        const auto streamed = piped(scratch, stream_of(sample(name)), "replay --trace -" + rest);
        CHECK(streamed.err.empty());
        REQUIRE(streamed.status == 0);
        const std::int64_t recorded = std::string(options).find("--warmup 2") != std::string::npos ? sample(name).iterations() - 2 : 0;
        const auto stored = tests::run_program("replay --trace " + std::string(name) + rest +
                                               (recorded > 0 ? " --iterations " + std::to_string(recorded) : ""));
        CHECK(streamed.out == stored.out);
      }
}

TEST_CASE("Sixteen bits with a scale, an explicit end, and the rest of the stream left alone") {
  const Scratch scratch("stream");
  const Json head = parse_json(
      R"({"schema_version": 1, "name": "s", "gradients": 4, "workers": 2, "layers": [{"name": "a", "shape": [4], "offset": 0, "size": 4}]})",
      "h");
  std::string stream = framed(head) + framed({{"iteration", 7}, {"dtype", "F16"}, {"scale", 4}});
  for (const char* half : {"\x00\x3c", "\x00\x40", "\x00\x42", "\x00\x44", "\x00\xbc", "\x00\xc0", "\x00\xc2", "\x00\xc4"})  // +-1, 2, 3, 4
    stream += std::string(half, 2);
  stream += framed({{"iteration", 8}, {"dtype", "BF16"}});
  for (int i = 0; i < 8; ++i) stream += std::string("\x80\x3f", 2);  // 1
  stream += std::string(8, '\0') + "anything";
  spit(scratch / "s", stream);
  std::FILE* file = std::fopen((scratch / "s").c_str(), "rb");
  StreamSource source(file, "s", 2);
  CHECK(source.gradients() == 4);
  CHECK(source.gradient(0, 0)[2] == 0.75F);
  CHECK(source.gradient(0, 1)[3] == -1.0F);
  CHECK(source.gradient(1, 1)[0] == 1.0F);
  CHECK_THROWS_AS(source.gradient(0, 0), InputError);
  CHECK_FALSE(source.has(2));
  CHECK_FALSE(source.has(3));
  std::fclose(file);
}

TEST_CASE("Broken streams are refused in one line, after the records of what was whole") {
  const Scratch scratch("stream");
  const Trace trace = sample("digits-cnn-8w");
  const std::string rest = "replay --trace - --sparsifier topk --workers 8";
  const auto refused = [&](const std::string& content, std::int64_t records, const std::string& options = "") {
    const auto result = piped(scratch, content, rest + options);
    CHECK(result.status == 2);
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    CHECK(std::count(result.out.begin(), result.out.end(), '\n') == records);
    return result.err;
  };
  const std::string head = framed(head_of(trace)), first = frame_of(trace, 0), second = frame_of(trace, 1);
  CHECK_THAT(refused("", 0), ContainsSubstring("byte 0: expected the head of a stream, found the end"));
  CHECK_THAT(refused("abc", 0), ContainsSubstring("8 bytes of length before the head"));
  CHECK_THAT(refused(std::string(8, '\xff'), 0), ContainsSubstring("a length of the head of at most"));
  CHECK_THAT(refused(head.substr(0, 100), 0), ContainsSubstring("bytes of the head"));
  CHECK_THAT(refused(framed(Json::array()), 0), ContainsSubstring("a JSON object"));
  CHECK_THAT(refused(framed({{"schema_version", 1}}), 0), ContainsSubstring("head"));
  CHECK_THAT(refused(framed(trace.info().manifest), 0), ContainsSubstring("no such key in a stream"));
  CHECK_THAT(refused(head + first + second.substr(0, 5000), 1), ContainsSubstring("bytes of gradients (iteration 21), found"));
  CHECK_THAT(refused(head + first + first, 1), ContainsSubstring("consecutive iterations, here 21, found 20"));
  CHECK_THAT(refused(head + framed({{"iteration", 1}, {"dtype", "F64"}}), 0), ContainsSubstring("F32, F16 or BF16"));
  CHECK_THAT(refused(head + framed({{"iteration", 1}, {"scale", 0}}), 0), ContainsSubstring("a finite number > 0"));
  CHECK_THAT(refused(head + framed({{"iteration", -1}}), 0), ContainsSubstring("an integer >= 0"));
  CHECK_THAT(refused(head + first + second, 0, " --warmup 4"), ContainsSubstring("its end after 2"));
  CHECK_THAT(refused(head + first, 0, " --expansion hybrid"), ContainsSubstring("cannot be expanded"));
  CHECK_THAT(refused(head + first, 0, " --captured 4"), ContainsSubstring("--captured"));
  const auto many = piped(scratch, head + first, "replay --trace - --sparsifier topk --workers 9");
  CHECK(many.status == 2);
  CHECK_THAT(many.err, ContainsSubstring("1 to 8, the workers of the stream"));
  std::string infinite = first;
  const float infinity = std::numeric_limits<float>::infinity();
  infinite.replace(infinite.size() - 4, 4, reinterpret_cast<const char*>(&infinity), 4);
  CHECK_THAT(refused(head + infinite, 0), ContainsSubstring("finite gradients"));
}

TEST_CASE("Of a job that is stopped the records of whole iterations are kept, and the cut is said") {
  const Scratch scratch("stream");
  const Trace trace = sample("digits-cnn-8w");
  const std::string whole = framed(head_of(trace)) + frame_of(trace, 0) + frame_of(trace, 1),
                    rest = "replay --trace - --sparsifier topk --workers 8";
  const auto stored = tests::run_program("replay --trace digits-cnn-8w --sparsifier topk --workers 8 --iterations 2");
  REQUIRE(stored.status == 0);

  const auto between = piped(scratch, whole, rest);
  CHECK(between.status == 0);
  CHECK(between.out == stored.out);
  CHECK_THAT(between.err, ContainsSubstring("warning: standard input: no mark at the end of the stream"));
  CHECK(std::count(between.err.begin(), between.err.end(), '\n') == 1);
  CHECK(piped(scratch, whole, rest + " --iterations 2").err.empty());  // as many as were asked for
  CHECK(piped(scratch, whole + std::string(8, '\0'), rest).err.empty());

  const std::string file = (scratch / "records.jsonl").string();
  const auto inside = piped(scratch, whole + frame_of(trace, 2).substr(0, 100000), rest + " --out '" + file + "'");
  CHECK(inside.status == 2);
  CHECK(std::count(inside.err.begin(), inside.err.end(), '\n') == 1);
  CHECK(slurp(file) == stored.out);
  const std::string none = (scratch / "none.jsonl").string();
  CHECK(piped(scratch, framed(head_of(trace)) + "broken", rest + " --out '" + none + "'").status == 2);
  CHECK_FALSE(std::filesystem::exists(none));
}
