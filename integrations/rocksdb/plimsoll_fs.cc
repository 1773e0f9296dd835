// RocksDB over host mode: a FileSystem whose reads of table files have a deadline. A read that would be late fails at once with
// Status::Busy, whose text has the wait; Get, iterators and MultiGet pass it on, and the next read is fine.
//
// The deadline of a read is what is left of ReadOptions::deadline, or ReadOptions::io_timeout; without either, $PLIMSOLL_DEADLINE_US
// (programs that set none, as db_bench). This default isn't for reads of compactions, flushes and of opening a database: a Busy there
// would stop its writes, or its opening. RocksDB 7 marks none of them, so they are told apart otherwise:
//
//  * background threads by their name, which RocksDB gives them and which threads of theirs inherit;
//  * opening by the database's files: it begins with the lock of LOCK and ends with a new OPTIONS file. Databases that are open for
//    reading only, and tables in folders of their own (db_paths), have no default deadline for that.
//
// A plug-in: preload it, or link it, and name the file system `plimsoll://` (db_bench --fs_uri=plimsoll://).
#include "plimsoll_deadline_us.h"
#include "plimsoll_descriptors.h"

#include <plimsoll-host.h>
#include <rocksdb/file_system.h>
#include <rocksdb/utilities/object_registry.h>

#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unistd.h>

namespace {

using namespace ROCKSDB_NAMESPACE;

// One a process, for ever: files outlive static destructors.
const plimsoll_host* host() {
  static const plimsoll_host* const made = plimsoll_host_open(nullptr, 0);
  return made;
}

// One a process, for ever.
plimsoll::Descriptors& descriptors() {
  static plimsoll::Descriptors* const made = new plimsoll::Descriptors();
  return *made;
}

// True while a database in a folder is open. Shared by its files.
using IsOpen = std::shared_ptr<std::atomic<bool>>;

class Folders {
 public:
  IsOpen of(const std::string& file) {
    const std::lock_guard<std::mutex> guard(mutex_);
    IsOpen& found = of_[file.substr(0, file.find_last_of('/') + 1)];
    if (!found) {
      found = std::make_shared<std::atomic<bool>>(false);
    }
    return found;
  }

  // The folder of a lock that was taken.
  IsOpen locked(const FileLock* lock, const std::string& file) {
    IsOpen found = of(file);
    const std::lock_guard<std::mutex> guard(mutex_);
    by_lock_[lock] = found;
    return found;
  }

  void unlocked(const FileLock* lock) {
    const std::lock_guard<std::mutex> guard(mutex_);
    const auto found = by_lock_.find(lock);
    if (found != by_lock_.end()) {
      found->second->store(false, std::memory_order_relaxed);
      by_lock_.erase(found);
    }
  }

 private:
  std::mutex mutex_;
  std::map<std::string, IsOpen> of_;
  std::map<const FileLock*, IsOpen> by_lock_;
};

bool begins(const std::string& file, const char* name) {
  return file.compare(file.find_last_of('/') + 1, std::strlen(name), name) == 0;
}

bool in_background() {
  char name[16] = {};
  return pthread_getname_np(pthread_self(), name, sizeof name) != 0 || std::strncmp(name, "rocksdb:", 8) == 0;
}

class File : public FSRandomAccessFileOwnerWrapper {
 public:
  File(std::unique_ptr<FSRandomAccessFile>&& file, int fd, uint64_t default_us, IsOpen is_open)
      : FSRandomAccessFileOwnerWrapper(std::move(file)), fd_(fd), default_us_(default_us), is_open_(std::move(is_open)) {}
  ~File() override {
    close(fd_);
    descriptors().give();
  }

  IOStatus Read(uint64_t offset, size_t n, const IOOptions& options, Slice* result, char* scratch,
                IODebugContext* debug) const override {
    const uint64_t us = options.timeout.count() > 0 ? static_cast<uint64_t>(options.timeout.count()) : default_us(options);
    if (us == 0 || host() == nullptr) {
      return FSRandomAccessFileOwnerWrapper::Read(offset, n, options, result, scratch, debug);
    }
    size_t done = 0;
    while (done < n) {
      plimsoll_host_busy busy{};
      const ssize_t got = plimsoll_host_read(host(), fd_, scratch + done, n - done, offset + done, us, &busy);
      if (got == -EBUSY) {
        return IOStatus::Busy("plimsoll: wait about " + std::to_string(busy.wait_us) + " us");
      }
      if (got == -EINTR) {
        continue;
      }
      if (got < 0) {
        return IOStatus::IOError("plimsoll: read", std::strerror(static_cast<int>(-got)));
      }
      if (got == 0) {
        break;
      }
      done += static_cast<size_t>(got);
    }
    *result = Slice(scratch, done);
    return IOStatus::OK();
  }

  IOStatus MultiRead(FSReadRequest* requests, size_t count, const IOOptions& options, IODebugContext* debug) override {
    for (size_t i = 0; i < count; i++) {
      FSReadRequest& r = requests[i];
      r.status = Read(r.offset, r.len, options, &r.result, r.scratch, debug);
    }
    return IOStatus::OK();
  }

  // Ours are synchronous: RocksDB then reads so.
  IOStatus ReadAsync(FSReadRequest& request, const IOOptions& options, std::function<void(const FSReadRequest&, void*)> done,
                     void* argument, void** handle, IOHandleDeleter* deleter, IODebugContext* debug) override {
    request.status = Read(request.offset, request.len, options, &request.result, request.scratch, debug);
    done(request, argument);
    if (handle != nullptr) {
      *handle = nullptr;
    }
    if (deleter != nullptr) {
      *deleter = nullptr;
    }
    return IOStatus::OK();
  }

 private:
  uint64_t default_us(const IOOptions& options) const {
    const bool is_get = default_us_ != 0 && is_open_->load(std::memory_order_relaxed) &&
                        options.rate_limiter_priority == Env::IO_TOTAL && !in_background();
    return is_get ? default_us_ : 0;
  }

  const int fd_;
  const uint64_t default_us_;
  const IsOpen is_open_;
};

class PlimsollFileSystem : public FileSystemWrapper {
 public:
  PlimsollFileSystem() : FileSystemWrapper(FileSystem::Default()), default_us_(static_cast<uint64_t>(plimsoll::deadline_us())) {}
  const char* Name() const override { return "plimsoll"; }

  IOStatus NewRandomAccessFile(const std::string& name, const FileOptions& options,
                               std::unique_ptr<FSRandomAccessFile>* result, IODebugContext* debug) override {
    std::unique_ptr<FSRandomAccessFile> file;
    IOStatus status = FileSystemWrapper::NewRandomAccessFile(name, options, &file, debug);
    if (!status.ok()) {
      return status;
    }
    // Mapped files and other alignments than ours are left alone, and so are tables when the second descriptors would be too many.
    const bool is_taken = !options.use_mmap_reads && descriptors().take();
    const int fd = is_taken ? open(name.c_str(), O_RDONLY | O_CLOEXEC | (options.use_direct_reads ? O_DIRECT : 0)) : -1;
    if (fd < 0) {
      if (is_taken) {
        descriptors().give();
      }
      if (!options.use_mmap_reads && !was_reported_.exchange(true)) {
        plimsoll::say("plimsoll: tables beyond a fifth of the limit of open files have no deadline: raise the limit (ulimit -n, LimitNOFILE=)\n");
      }
      *result = std::move(file);
    } else {
      result->reset(new File(std::move(file), fd, default_us_, folders_.of(name)));
    }
    return status;
  }

  IOStatus LockFile(const std::string& name, const IOOptions& options, FileLock** lock, IODebugContext* debug) override {
    IOStatus status = FileSystemWrapper::LockFile(name, options, lock, debug);
    if (status.ok() && begins(name, "LOCK")) {
      folders_.locked(*lock, name)->store(false, std::memory_order_relaxed);
    }
    return status;
  }

  // A database is closed: whoever opens it next, for reading only too, has no default deadline meanwhile.
  IOStatus UnlockFile(FileLock* lock, const IOOptions& options, IODebugContext* debug) override {
    folders_.unlocked(lock);
    return FileSystemWrapper::UnlockFile(lock, options, debug);
  }

  IOStatus RenameFile(const std::string& from, const std::string& to, const IOOptions& options,
                      IODebugContext* debug) override {
    IOStatus status = FileSystemWrapper::RenameFile(from, to, options, debug);
    if (status.ok() && begins(to, "OPTIONS-")) {
      folders_.of(to)->store(true, std::memory_order_relaxed);
    }
    return status;
  }

 private:
  const uint64_t default_us_;
  std::atomic<bool> was_reported_{false};
  Folders folders_;
};

// Called when the library is loaded.
const bool registered = [] {
  ObjectLibrary::Default()->AddFactory<FileSystem>(
      ObjectLibrary::PatternEntry("plimsoll", false).AddSeparator("://", false),
      [](const std::string&, std::unique_ptr<FileSystem>* made, std::string*) {
        made->reset(new PlimsollFileSystem());
        return made->get();
      });
  return true;
}();

}  // namespace
