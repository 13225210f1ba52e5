#include "experiments/task_pool.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <map>
#include <numeric>

#include "base/error.hpp"

namespace sparscale::experiments {
namespace {

volatile std::sig_atomic_t interrupted = 0;
void note_interrupt(int) { interrupted = 1; }

/// SIGINT and SIGTERM set the flag for as long as this lives.
class InterruptGuard {
 public:
  InterruptGuard() {
    interrupted = 0;
    struct sigaction action {};
    action.sa_handler = note_interrupt;
    sigaction(SIGINT, &action, &old_int_);
    sigaction(SIGTERM, &action, &old_term_);
  }
  ~InterruptGuard() {
    sigaction(SIGINT, &old_int_, nullptr);
    sigaction(SIGTERM, &old_term_, nullptr);
  }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  struct sigaction old_int_ {
  }, old_term_{};
};

struct Child {
  std::size_t task = 0;
  pid_t process = 0;
  int errors = -1;  // read end of the pipe for its error message
  std::string message;
};

[[noreturn]] void run_child(const Task& task, int errors, pid_t parent) {
  // When the program is killed, nobody waits for this result any more.
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(1);
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  std::string message;
  try {
    task.work();
  } catch (const std::exception& error) {
    message = error.what();
    if (message.empty()) message = "failed without a reason";
  }
  std::string_view rest = message;
  while (!rest.empty()) {
    const ssize_t written = ::write(errors, rest.data(), rest.size());
    if (written < 0 && errno != EINTR) break;
    if (written > 0) rest.remove_prefix(static_cast<std::size_t>(written));
  }
  ::_exit(message.empty() ? 0 : 1);
}

Child start(const std::vector<Task>& tasks, std::size_t index) {
  int ends[2];
  if (::pipe(ends) != 0) throw RunError(std::string("cannot make a pipe: ") + std::strerror(errno));
  const pid_t parent = ::getpid();
  const pid_t process = ::fork();
  if (process < 0) {
    const int reason = errno;
    ::close(ends[0]);
    ::close(ends[1]);
    throw RunError(std::string("cannot fork: ") + std::strerror(reason));
  }
  if (process == 0) {
    ::close(ends[0]);
    run_child(tasks[index], ends[1], parent);
  }
  ::close(ends[1]);
  return {index, process, ends[0], {}};
}

TaskResult finish(const Child& child) {
  int status = 0;
  while (::waitpid(child.process, &status, 0) < 0 && errno == EINTR) {
  }
  ::close(child.errors);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {true, {}};
  if (!child.message.empty()) return {false, child.message};
  if (WIFSIGNALED(status)) return {false, std::string("ended by signal ") + strsignal(WTERMSIG(status))};
  return {false, "ended with status " + std::to_string(WEXITSTATUS(status))};
}

}  // namespace

std::vector<TaskResult> run_tasks(const std::vector<Task>& tasks, int jobs, std::uint64_t memory_bytes, const TaskEnded& ended) {
  std::vector<TaskResult> results(tasks.size());
  std::vector<std::size_t> order(tasks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return tasks[a].weight > tasks[b].weight; });

  const InterruptGuard guard;
  std::vector<Child> running;
  const auto stop_all = [&running] {
    for (const Child& child : running) ::kill(child.process, SIGTERM);
    for (const Child& child : running) finish(child);
    running.clear();
  };
  // The dearest waiting task that fits beside those that run.
  const auto next = [&] {
    std::uint64_t taken = 0;
    for (const Child& child : running) taken += tasks[child.task].memory_bytes;
    return std::find_if(order.begin(), order.end(), [&](std::size_t task) {
      return running.empty() || (taken <= memory_bytes && tasks[task].memory_bytes <= memory_bytes - taken);
    });
  };
  try {
    while (!order.empty() || !running.empty()) {
      while (running.size() < static_cast<std::size_t>(std::max(jobs, 1)) && interrupted == 0) {
        const auto chosen = next();
        if (chosen == order.end()) break;
        const std::size_t task = *chosen;
        order.erase(chosen);
        running.push_back(start(tasks, task));
      }
      if (interrupted != 0) throw RunError("interrupted; what is finished is kept and the same command goes on from there");
      std::vector<pollfd> polls;
      for (const Child& child : running) polls.push_back({child.errors, POLLIN, 0});
      if (::poll(polls.data(), polls.size(), -1) < 0 && errno != EINTR) throw RunError(std::string("poll: ") + std::strerror(errno));
      for (std::size_t i = running.size(); i-- > 0;) {
        if ((polls[i].revents & (POLLIN | POLLHUP | POLLERR)) == 0) continue;
        char buffer[4096];
        const ssize_t count = ::read(running[i].errors, buffer, sizeof buffer);
        if (count > 0) {
          running[i].message.append(buffer, static_cast<std::size_t>(count));
        } else if (count == 0) {
          const Child child = running[i];
          running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
          results[child.task] = finish(child);
          ended(child.task, results[child.task]);
        }
      }
    }
  } catch (...) {
    stop_all();
    throw;
  }
  return results;
}

}  // namespace sparscale::experiments
