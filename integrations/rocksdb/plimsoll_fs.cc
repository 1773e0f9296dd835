// RocksDB over host mode: a FileSystem whose reads of table files have a deadline. A read that would be late fails at once with
// Status::Busy, whose text has the wait; Get, iterators and MultiGet pass it on, and the next read is fine.
//
// The deadline of a read is what is left of ReadOptions::deadline, or ReadOptions::io_timeout; without either, $PLIMSOLL_DEADLINE_US
// (programs that set none, as db_bench). Reads of compactions and of opening a database have none.
//
// A plug-in: preload it, or link it, and name the file system `plimsoll://` (db_bench --fs_uri=plimsoll://).
#include <plimsoll-host.h>
#include <rocksdb/file_system.h>
#include <rocksdb/utilities/object_registry.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <string>
#include <unistd.h>

namespace {

using namespace ROCKSDB_NAMESPACE;

uint64_t default_deadline_us() {
  const char* text = std::getenv("PLIMSOLL_DEADLINE_US");
  return text ? std::strtoull(text, nullptr, 10) : 0;
}

// One a process, for ever: files outlive static destructors.
const plimsoll_host* host() {
  static const plimsoll_host* const made = plimsoll_host_open(nullptr, 0);
  return made;
}

class File : public FSRandomAccessFileOwnerWrapper {
 public:
  File(std::unique_ptr<FSRandomAccessFile>&& file, int fd, uint64_t default_us)
      : FSRandomAccessFileOwnerWrapper(std::move(file)), fd_(fd), default_us_(default_us) {}
  ~File() override { close(fd_); }

  IOStatus Read(uint64_t offset, size_t n, const IOOptions& options, Slice* result, char* scratch,
                IODebugContext* debug) const override {
    const uint64_t us = options.timeout.count() > 0 ? static_cast<uint64_t>(options.timeout.count()) : default_us_;
    if (us == 0 || host() == nullptr || options.rate_limiter_priority != Env::IO_TOTAL) {
      return FSRandomAccessFileOwnerWrapper::Read(offset, n, options, result, scratch, debug);
    }
    size_t done = 0;
    while (done < n) {
      plimsoll_busy busy{};
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
  const int fd_;
  const uint64_t default_us_;
};

class PlimsollFileSystem : public FileSystemWrapper {
 public:
  PlimsollFileSystem() : FileSystemWrapper(FileSystem::Default()), default_us_(default_deadline_us()) {}
  const char* Name() const override { return "plimsoll"; }

  IOStatus NewRandomAccessFile(const std::string& name, const FileOptions& options,
                               std::unique_ptr<FSRandomAccessFile>* result, IODebugContext* debug) override {
    std::unique_ptr<FSRandomAccessFile> file;
    IOStatus status = FileSystemWrapper::NewRandomAccessFile(name, options, &file, debug);
    if (!status.ok()) {
      return status;
    }
    // Mapped files and other alignments than ours are left alone.
    const int fd = options.use_mmap_reads ? -1 : open(name.c_str(), O_RDONLY | O_CLOEXEC | (options.use_direct_reads ? O_DIRECT : 0));
    if (fd < 0) {
      *result = std::move(file);
    } else {
      result->reset(new File(std::move(file), fd, default_us_));
    }
    return status;
  }

 private:
  const uint64_t default_us_;
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
