// LevelDB's deadlines for unmodified programs: a library to preload, compiled from this file and plimsoll_env.cc. It answers for
// leveldb::Env::Default(), which Options and the C interface take unless a program has an Env of its own. Each read of a table has the
// deadline $PLIMSOLL_DEADLINE_US; without it nothing is changed.
//
// Reaches programs that load libleveldb.so (Debian's python3-plyvel, for one), not those that contain LevelDB.
#include "plimsoll_env.h"

#include <cerrno>
#include <cstdlib>
#include <dlfcn.h>
#include <poll.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

namespace {

// Prints a line on standard error, if that is a terminal or a pipe with room. It may be a file of the program's.
void say(const std::string& line) {
  struct stat is {};
  pollfd ready{STDERR_FILENO, POLLOUT, 0};
  if ((isatty(STDERR_FILENO) == 1 || (fstat(STDERR_FILENO, &is) == 0 && S_ISFIFO(is.st_mode))) && poll(&ready, 1, 0) == 1 &&
      ready.revents == POLLOUT && write(STDERR_FILENO, line.data(), line.size()) < 0) {
    // There is nobody else to notify.
  }
}

// The deadline of each read; zero: none.
std::chrono::microseconds deadline() {
  const char* text = std::getenv("PLIMSOLL_DEADLINE_US");
  if (text == nullptr || *text == '\0') {
    return std::chrono::microseconds::zero();
  }
  char* end = nullptr;
  errno = 0;
  const long long us = std::strtoll(text, &end, 10);
  if (errno != 0 || *end != '\0' || us < 0) {
    say(std::string("plimsoll: PLIMSOLL_DEADLINE_US=") + text + " isn't a number of microseconds: reads go on without deadlines\n");
    return std::chrono::microseconds::zero();
  }
  return std::chrono::microseconds(us);
}

leveldb::Env* with_deadlines() {
  using Default = leveldb::Env* (*)();
  const auto original = reinterpret_cast<Default>(dlsym(RTLD_NEXT, "_ZN7leveldb3Env7DefaultEv"));
  if (original == nullptr) {
    std::abort();  // it is linked to libleveldb.so, which has it
  }
  const auto each_read = deadline();
  return each_read.count() > 0 ? plimsoll::NewDeadlineEnv(original(), each_read) : original();
}

}  // namespace

// For ever, as the original.
leveldb::Env* leveldb::Env::Default() {
  static leveldb::Env* const made = with_deadlines();
  return made;
}
