// LevelDB over host mode: reads of tables with deadlines. A read that would be late fails at once, so that the program asks another
// replica. LevelDB has no registry of plug-ins and no deadline in ReadOptions. So a program compiles plimsoll_env.cc, puts this Env into
// Options::env, and gives a deadline to what it does in a scope:
//
//   options.env = plimsoll::NewDeadlineEnv(leveldb::Env::Default());
//   …
//   plimsoll::Deadline deadline(std::chrono::milliseconds(10));
//   leveldb::Status status = db->Get(leveldb::ReadOptions(), key, &value);
//   if (plimsoll::IsBusy(status)) { /* the next replica */ }
//
// Only the program's own reads of tables have deadlines. Compactions, opening, repair, logs and manifests never have.
#ifndef PLIMSOLL_LEVELDB_ENV_H
#define PLIMSOLL_LEVELDB_ENV_H

#include <leveldb/env.h>
#include <leveldb/status.h>

#include <chrono>

namespace plimsoll {

// Returns an Env that reads tables with deadlines and is `base` otherwise. The caller deletes it after its databases, before `base`.
//
// `each_read` is the deadline of each read that has no Deadline; zero: none. A program can't see that a scan under it was refused until it
// asks for the iterator's status.
//
// Tables are read with pread(2), which copies. LevelDB's own Env maps them, 1000 at most, and copies nothing.
leveldb::Env* NewDeadlineEnv(leveldb::Env* base, std::chrono::microseconds each_read = std::chrono::microseconds::zero());

// The deadline of one request: of all reads of tables by this thread while the object exists. The innermost object is in effect.
//
// After a refusal the further reads under it are refused, too, without a look at the disk. LevelDB's iterators go on after a failed block,
// and would try all blocks that follow.
class Deadline {
 public:
  // No deadline, although an outer object or the Env has one: for the last replica.
  Deadline();
  // Ends in `time` from now. A read of pages in memory is served after that, too.
  explicit Deadline(std::chrono::microseconds time);
  ~Deadline();
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

 private:
  friend class Limit;
  Deadline* const outer_;
  const bool is_set_;
  const std::chrono::steady_clock::time_point end_;
  leveldb::Status refusal_;
};

// True for the refusal of a read: an IOError whose text is "IO error: plimsoll: busy: wait about N us". `wait` gets these microseconds.
//
// An iterator that isn't OK may have left keys out, also if it is Valid(): ask for its status before its keys are used.
bool IsBusy(const leveldb::Status& status, std::chrono::microseconds* wait = nullptr);

}  // namespace plimsoll

#endif
