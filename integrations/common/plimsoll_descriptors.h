// Descriptors that tables may keep for reads with deadlines: a fifth of the process's, as in LevelDB's own Env.
#ifndef PLIMSOLL_DESCRIPTORS_H
#define PLIMSOLL_DESCRIPTORS_H

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <sys/resource.h>

namespace plimsoll {

class Descriptors {
 public:
  Descriptors() : left_(most()) {}
  bool take() {
    if (left_.fetch_sub(1, std::memory_order_relaxed) > 0) {
      return true;
    }
    give();
    return false;
  }
  void give() { left_.fetch_add(1, std::memory_order_relaxed); }

 private:
  static int64_t most() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
      return 50;
    }
    return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur / 5, std::numeric_limits<int32_t>::max()));
  }
  std::atomic<int64_t> left_;
};

}  // namespace plimsoll

#endif
