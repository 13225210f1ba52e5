// Tasks in forked processes: one that aborts fails alone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace sparscale::experiments {

struct Task {
  std::string label;
  double weight = 1;  // relative cost; dearer tasks start first
  std::uint64_t memory_bytes = 0;
  std::function<void()> work;  // runs in a child process; leaves its result in a file
};

struct TaskResult {
  bool done = false;
  std::string error;  // empty when done
};

/// Called in the parent whenever a task ends.
using TaskEnded = std::function<void(std::size_t task, const TaskResult& result)>;

/// Runs the tasks, at most `jobs` at a time and only as many as fit into the memory together (one always runs). Results stand in the order
/// of the tasks. SIGINT and SIGTERM stop the children and throw RunError; finished results stay on disk.
std::vector<TaskResult> run_tasks(const std::vector<Task>& tasks, int jobs, std::uint64_t memory_bytes, const TaskEnded& ended);

}  // namespace sparscale::experiments
