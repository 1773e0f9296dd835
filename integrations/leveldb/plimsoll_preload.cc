// LevelDB's deadlines for unmodified programs: a library to preload, compiled from this file and plimsoll_env.cc. It answers for
// leveldb::Env::Default(), which Options and the C interface take unless a program has an Env of its own. Each read of a table has the
// deadline $PLIMSOLL_DEADLINE_US; without it nothing is changed.
//
// Reaches programs that load libleveldb.so (Debian's python3-plyvel, for one), not those that contain LevelDB.
#include "plimsoll_deadline_us.h"
#include "plimsoll_env.h"

#include <cstdlib>
#include <dlfcn.h>

namespace {

leveldb::Env* with_deadlines() {
  using Default = leveldb::Env* (*)();
  const auto original = reinterpret_cast<Default>(dlsym(RTLD_NEXT, "_ZN7leveldb3Env7DefaultEv"));
  if (original == nullptr) {
    std::abort();  // it is linked to libleveldb.so, which has it
  }
  const std::chrono::microseconds each_read(plimsoll::deadline_us());
  return each_read.count() > 0 ? plimsoll::NewDeadlineEnv(original(), each_read) : original();
}

}  // namespace

// For ever, as the original.
leveldb::Env* leveldb::Env::Default() {
  static leveldb::Env* const made = with_deadlines();
  return made;
}
