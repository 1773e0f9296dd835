// PLIMSOLL_DEADLINE_US: the deadline of each read of a program that sets none itself.
#ifndef PLIMSOLL_DEADLINE_US_H
#define PLIMSOLL_DEADLINE_US_H

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <poll.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

namespace plimsoll {

// Prints a line on standard error, if that is a terminal or a pipe with room. It may be a file of the program's.
inline void say(const std::string& line) {
  struct stat is {};
  pollfd ready{STDERR_FILENO, POLLOUT, 0};
  if ((isatty(STDERR_FILENO) == 1 || (fstat(STDERR_FILENO, &is) == 0 && S_ISFIFO(is.st_mode))) && poll(&ready, 1, 0) == 1 &&
      ready.revents == POLLOUT && write(STDERR_FILENO, line.data(), line.size()) < 0) {
    // There is nobody else to notify.
  }
}

// Returns the variable's value in microseconds; 0: none. A value with a unit, as 4ms, is none either, and is reported.
inline int64_t deadline_us() {
  const char* text = std::getenv("PLIMSOLL_DEADLINE_US");
  if (text == nullptr || *text == '\0') {
    return 0;
  }
  char* end = nullptr;
  errno = 0;
  const long long us = std::strtoll(text, &end, 10);
  if (errno != 0 || *end != '\0' || us < 0) {
    say(std::string("plimsoll: PLIMSOLL_DEADLINE_US=") + text + " isn't a number of microseconds: reads go on without deadlines\n");
    return 0;
  }
  return us;
}

}  // namespace plimsoll

#endif
