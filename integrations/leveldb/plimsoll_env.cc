// LevelDB's Env with deadlines. plimsoll_env.h has the contract.
//
// A deadline is for reads of tables by the program's own threads. LevelDB 1.23 says nowhere whose read it is, so they are distinguished:
//
//  * compactions run by Schedule, which marks the thread for that time;
//  * a database is being opened from the lock of its LOCK until its folder is listed for the second time (recovery's look for logs, then the
//    removal of obsolete files). The tables that recovery writes are read meanwhile;
//  * without the lock there is no database but a repair, which would take a refused table for a corrupt one.
//
// Logs and manifests are read as SequentialFile, and aren't concerned.
#include "plimsoll_descriptors.h"
#include "plimsoll_env.h"

#include <plimsoll-host.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

namespace plimsoll {

using leveldb::Slice;
using leveldb::Status;
using std::chrono::microseconds;
using std::chrono::steady_clock;

namespace {

// Begins a refusal's text; LevelDB puts "IO error: " before it and ": " behind.
constexpr char kBusy[] = "plimsoll: busy";
constexpr char kWait[] = "wait about ";
// Longer deadlines are none, so that a sum with the time of day has room.
constexpr auto kLongest = std::chrono::hours(24 * 365);

thread_local Deadline* innermost = nullptr;
thread_local bool is_background = false;

// One a process, for ever: files outlive static destructors. NULL: the socket's name isn't UTF-8.
const plimsoll_host* host() {
  static const plimsoll_host* const made = plimsoll_host_open(nullptr, 0);
  return made;
}

// State of a folder's database.
enum : int { kOpen = 0, kToBeListedAgain = 1, kLocked = 2, kClosed = 3 };
using State = std::shared_ptr<std::atomic<int>>;

// The databases by folder, whose name ends with a slash.
class Folders {
 public:
  static std::string of_file(const std::string& file) { return file.substr(0, file.find_last_of('/') + 1); }

  State at(const std::string& folder) {
    const std::lock_guard<std::mutex> guard(mutex_);
    State& found = at_[folder];
    if (!found) {
      found = std::make_shared<std::atomic<int>>(kClosed);
    }
    return found;
  }

  void locked(const std::string& folder, const leveldb::FileLock* lock) {
    at(folder)->store(kLocked, std::memory_order_relaxed);
    const std::lock_guard<std::mutex> guard(mutex_);
    locks_[lock] = folder;
  }

  void unlocked(const leveldb::FileLock* lock) {
    const std::lock_guard<std::mutex> guard(mutex_);
    const auto found = locks_.find(lock);
    if (found != locks_.end()) {
      const auto state = at_.find(found->second);
      if (state != at_.end()) {
        state->second->store(kClosed, std::memory_order_relaxed);
        at_.erase(state);
      }
      locks_.erase(found);
    }
  }

  void listed(const std::string& folder) {
    const std::lock_guard<std::mutex> guard(mutex_);
    const auto found = at_.find(folder);
    if (found == at_.end()) {
      return;
    }
    const int state = found->second->load(std::memory_order_relaxed);
    if (state == kLocked || state == kToBeListedAgain) {
      found->second->store(state - 1, std::memory_order_relaxed);
    }
  }

 private:
  std::mutex mutex_;
  std::map<std::string, State> at_;
  std::map<const leveldb::FileLock*, std::string> locks_;
};

// Descriptors of tables that were closed after a refusal. The library brings the refused pages in by the descriptor, a moment later, and
// LevelDB closes a table whose opening failed at once.
class Refused {
 public:
  ~Refused() { close_all(); }

  // Closes it later.
  void keep(int fd) {
    const std::lock_guard<std::mutex> guard(mutex_);
    kept_.push_back(fd);
    if (kept_.size() > kMost) {
      close(kept_.front());
      kept_.pop_front();
    }
  }

  void close_all() {
    const std::lock_guard<std::mutex> guard(mutex_);
    for (const int fd : kept_) {
      close(fd);
    }
    kept_.clear();
  }

 private:
  static constexpr size_t kMost = 16;
  std::mutex mutex_;
  std::deque<int> kept_;
};

// Shared by an Env and its tables.
struct Shared {
  microseconds each_read;
  Descriptors descriptors;
  Refused refused;
  Folders folders;
};

}  // namespace

// The deadline of the read that this thread is about to do.
class Limit {
 public:
  Limit(const std::atomic<int>& database, microseconds each_read) {
    if (is_background || database.load(std::memory_order_relaxed) != kOpen) {
      return;
    }
    if (innermost == nullptr) {
      is_set_ = each_read.count() > 0;
      left_ = each_read;
    } else if (innermost->is_set_) {
      is_set_ = true;
      left_ = std::max(microseconds::zero(), std::chrono::duration_cast<microseconds>(innermost->end_ - steady_clock::now()));
      of_ = innermost;
    }
  }

  bool is_set() const { return is_set_; }
  uint64_t left_us() const { return static_cast<uint64_t>(left_.count()); }
  // An earlier refusal under the same Deadline, or OK.
  Status refusal() const { return of_ == nullptr ? Status::OK() : of_->refusal_; }
  Status refuse(uint64_t wait_us) const {
    const Status status = Status::IOError(kBusy, kWait + std::to_string(wait_us) + " us");
    if (of_ != nullptr) {
      of_->refusal_ = status;
    }
    return status;
  }

 private:
  bool is_set_ = false;
  microseconds left_ = microseconds::zero();
  Deadline* of_ = nullptr;
};

namespace {

class Table : public leveldb::RandomAccessFile {
 public:
  Table(std::string name, int fd, std::shared_ptr<Shared> shared)
      : name_(std::move(name)), shared_(std::move(shared)), database_(shared_->folders.at(Folders::of_file(name_))) {
    if (shared_->descriptors.take()) {
      fd_ = fd;
    } else {
      close(fd);
    }
  }

  ~Table() override {
    if (fd_ >= 0) {
      end(fd_);
      shared_->descriptors.give();
    }
  }

  Status Read(uint64_t offset, size_t n, Slice* result, char* scratch) const override {
    *result = Slice(scratch, 0);
    const bool may_be_refused = !is_of_filter(offset, n);
    const Limit limit(*database_, shared_->each_read);
    const bool is_limited = limit.is_set() && may_be_refused && host() != nullptr;
    if (is_limited && !limit.refusal().ok()) {
      return limit.refusal();
    }
    int fd = fd_;
    if (fd < 0 && (fd = open(name_.c_str(), O_RDONLY | O_CLOEXEC)) < 0) {
      return error(errno);
    }
    const Status status = is_limited ? read(fd, offset, n, limit, result, scratch) : read_all(fd, offset, n, result, scratch);
    if (fd != fd_) {
      end(fd);
    }
    return status;
  }

 private:
  // True for reads of the metaindex and of the filter. LevelDB takes their failure for a table without a filter, until the table is closed.
  //
  // A table is opened by one thread, which reads the footer, the index, the metaindex and the filter. Each ends where the one before begins.
  bool is_of_filter(uint64_t offset, size_t n) const {
    const int before = reads_.load(std::memory_order_relaxed);
    if (before > 3) {
      return false;
    }
    const bool is = before >= 2 && offset + n == begin_.load(std::memory_order_relaxed);
    reads_.store(before < 2 || is ? before + 1 : 4, std::memory_order_relaxed);
    begin_.store(offset, std::memory_order_relaxed);
    return is;
  }

  Status read(int fd, uint64_t offset, size_t n, const Limit& limit, Slice* result, char* scratch) const {
    size_t done = 0;
    while (done < n) {
      plimsoll_host_busy busy{};
      const ssize_t got = plimsoll_host_read(host(), fd, scratch + done, n - done, offset + done, limit.left_us(), &busy);
      if (got == -EBUSY) {
        was_refused_.store(true, std::memory_order_relaxed);
        return limit.refuse(busy.wait_us);
      }
      if (got < 0 && got != -EINTR) {
        return error(static_cast<int>(-got));
      }
      if (got == 0) {
        break;
      }
      done += got < 0 ? 0 : static_cast<size_t>(got);
    }
    *result = Slice(scratch, done);
    return Status::OK();
  }

  Status read_all(int fd, uint64_t offset, size_t n, Slice* result, char* scratch) const {
    size_t done = 0;
    while (done < n) {
      const ssize_t got = pread(fd, scratch + done, n - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno != EINTR) {
        return error(errno);
      }
      if (got == 0) {
        break;
      }
      done += got < 0 ? 0 : static_cast<size_t>(got);
    }
    *result = Slice(scratch, done);
    return Status::OK();
  }

  // A closed database keeps none: its file system may be unmounted.
  void end(int fd) const {
    if (was_refused_.load(std::memory_order_relaxed) && database_->load(std::memory_order_relaxed) != kClosed) {
      shared_->refused.keep(fd);
    } else {
      close(fd);
    }
  }

  Status error(int number) const { return Status::IOError(name_, std::strerror(number)); }

  const std::string name_;
  const std::shared_ptr<Shared> shared_;
  const State database_;
  int fd_ = -1;
  // Of the opening; after it the table is shared between threads, by way of a lock.
  mutable std::atomic<int> reads_{0};
  mutable std::atomic<uint64_t> begin_{0};
  mutable std::atomic<bool> was_refused_{false};
};

// Work for LevelDB's background thread.
struct Background {
  void (*run)(void*);
  void* argument;

  static void begin(void* of) {
    const std::unique_ptr<Background> work(static_cast<Background*>(of));
    const bool before = is_background;
    is_background = true;
    work->run(work->argument);
    is_background = before;
  }
};

class DeadlineEnv : public leveldb::EnvWrapper {
 public:
  DeadlineEnv(leveldb::Env* base, microseconds each_read) : EnvWrapper(base), shared_(std::make_shared<Shared>()) {
    shared_->each_read = each_read;
    host();  // the agent is looked for in the background
  }

  Status NewRandomAccessFile(const std::string& name, leveldb::RandomAccessFile** result) override {
    const int fd = open(name.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
      // With the base's own error, or it has another kind of files.
      return EnvWrapper::NewRandomAccessFile(name, result);
    }
    *result = new Table(name, fd, shared_);
    return Status::OK();
  }

  Status GetChildren(const std::string& folder, std::vector<std::string>* names) override {
    const Status status = EnvWrapper::GetChildren(folder, names);
    shared_->folders.listed(folder + "/");
    return status;
  }

  // A removed table's space is free once no descriptor of it is open.
  Status RemoveFile(const std::string& name) override {
    shared_->refused.close_all();
    return EnvWrapper::RemoveFile(name);
  }

  Status LockFile(const std::string& name, leveldb::FileLock** lock) override {
    const Status status = EnvWrapper::LockFile(name, lock);
    if (status.ok()) {
      shared_->folders.locked(Folders::of_file(name), *lock);
    }
    return status;
  }

  Status UnlockFile(leveldb::FileLock* lock) override {
    shared_->refused.close_all();
    shared_->folders.unlocked(lock);
    return EnvWrapper::UnlockFile(lock);
  }

  void Schedule(void (*run)(void*), void* argument) override {
    EnvWrapper::Schedule(&Background::begin, new Background{run, argument});
  }

 private:
  const std::shared_ptr<Shared> shared_;
};

}  // namespace

leveldb::Env* NewDeadlineEnv(leveldb::Env* base, microseconds each_read) { return new DeadlineEnv(base, each_read); }

Deadline::Deadline() : outer_(innermost), is_set_(false), end_() { innermost = this; }

Deadline::Deadline(microseconds time)
    : outer_(innermost), is_set_(time < kLongest), end_(steady_clock::now() + (is_set_ ? std::max(time, -microseconds(kLongest)) : microseconds::zero())) {
  innermost = this;
}

Deadline::~Deadline() { innermost = outer_; }

bool IsBusy(const Status& status, microseconds* wait) {
  if (!status.IsIOError()) {
    return false;
  }
  const std::string text = status.ToString();
  const std::string begin = std::string("IO error: ") + kBusy + ": " + kWait;
  if (text.compare(0, begin.size(), begin) != 0) {
    return false;
  }
  if (wait != nullptr) {
    *wait = microseconds(std::strtoll(text.c_str() + begin.size(), nullptr, 10));
  }
  return true;
}

}  // namespace plimsoll
