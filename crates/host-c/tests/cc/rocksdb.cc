// usage: rocksdb FOLDER: an empty folder, on a disk whose reads would each take an hour, after the agent. RocksDB is the real library, its
// FileSystem the plug-in of integrations/rocksdb. Prints "ok" if all holds.
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/table.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

using namespace ROCKSDB_NAMESPACE;
using namespace std::chrono_literals;
using std::chrono::microseconds;

#define CHECK(what)                                                \
  do {                                                             \
    if (!(what)) {                                                 \
      fprintf(stderr, "line %d: not %s\n", __LINE__, #what);       \
      _exit(1);                                                    \
    }                                                              \
  } while (0)

#define CHECK_OK(status)                                                                     \
  do {                                                                                       \
    const Status checked = (status);                                                         \
    if (!checked.ok()) {                                                                     \
      fprintf(stderr, "line %d: %s: %s\n", __LINE__, #status, checked.ToString().c_str());   \
      _exit(1);                                                                              \
    }                                                                                        \
  } while (0)

static const std::string key = "key0000500";
static const std::string value(1000, 'v');
static std::string folder;

static void evict() {
  DIR* d = opendir(folder.c_str());
  CHECK(d != nullptr);
  for (dirent* e; (e = readdir(d)) != nullptr;) {
    const std::string name = e->d_name;
    if (name.size() > 4 && name.substr(name.size() - 4) == ".sst") {
      const int fd = open((folder + "/" + name).c_str(), O_RDONLY);
      CHECK(fd >= 0);
      posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
      close(fd);
    }
  }
  closedir(d);
}

static bool is_refusal(const Status& s) {
  if (!s.ok() && !(s.IsBusy() && s.ToString().find("plimsoll: wait about") != std::string::npos)) {
    fprintf(stderr, "neither read nor refused: %s\n", s.ToString().c_str());
    _exit(1);
  }
  return !s.ok();
}

// A time from now, as ReadOptions::deadline has it.
static microseconds in(microseconds time) { return microseconds(Env::Default()->NowMicros()) + time; }

struct Limits {
  microseconds deadline, io_timeout;  // zero: none
};

static ReadOptions with(const Limits& l) {
  ReadOptions options;
  options.deadline = l.deadline.count() == 0 ? l.deadline : in(l.deadline);
  options.io_timeout = l.io_timeout;
  return options;
}

static Status get(DB* db, const Limits& limits) {
  evict();
  std::string found;
  const Status s = db->Get(with(limits), key, &found);
  CHECK(!s.ok() || found == value);
  return s;
}

// Each form of a read is refused in the end. The first ones are plain: the agent isn't found, or the page has never been read.
static void is_refused(const char* what, const std::function<Status()>& read) {
  const auto end = std::chrono::steady_clock::now() + 60s;
  while (!is_refusal(read())) {
    if (std::chrono::steady_clock::now() >= end) {
      fprintf(stderr, "%s: never refused\n", what);
      _exit(1);
    }
    std::this_thread::sleep_for(2ms);
  }
}

static void is_never_refused(DB* db, const char* what, const Limits& limits) {
  for (int i = 0; i < 50; i++) {
    if (is_refusal(get(db, limits))) {
      fprintf(stderr, "%s: refused\n", what);
      _exit(1);
    }
  }
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  folder = argv[1];
  ConfigOptions config;
  std::shared_ptr<FileSystem> files;
  CHECK_OK(FileSystem::CreateFromString(config, "plimsoll://", &files));
  const auto env = NewCompositeEnv(files);
  BlockBasedTableOptions table;
  table.no_block_cache = true;  // the page cache is what is tested
  Options options;
  options.create_if_missing = true;
  options.compression = kNoCompression;
  options.env = env.get();
  options.table_factory.reset(NewBlockBasedTableFactory(table));
  DB* opened = nullptr;
  CHECK_OK(DB::Open(options, folder, &opened));
  const std::unique_ptr<DB> db(opened);
  for (int i = 0; i < 1000; i++) {
    char name[16];
    snprintf(name, sizeof name, "key%07d", i);
    CHECK_OK(db->Put(WriteOptions(), name, value));
  }
  CHECK_OK(db->Flush(FlushOptions()));
  const int here = open(folder.c_str(), O_RDONLY);
  CHECK(here >= 0 && syncfs(here) == 0);  // dirty pages can't be evicted
  close(here);

  const microseconds none = 0us, near = 1s, far = 2h;
  is_refused("deadline", [&] { return get(db.get(), {near, none}); });
  is_refused("io_timeout", [&] { return get(db.get(), {none, near}); });
  is_refused("io_timeout before the deadline", [&] { return get(db.get(), {far, near}); });
  is_refused("deadline before the io_timeout", [&] { return get(db.get(), {near, far}); });
  is_never_refused(db.get(), "a far deadline", {far, none});
  is_never_refused(db.get(), "a far io_timeout", {none, far});
  is_never_refused(db.get(), "both far", {far, far});
  is_never_refused(db.get(), "neither", {none, none});
  CHECK(get(db.get(), {-1s, none}).IsTimedOut());  // RocksDB's own answer to a deadline that has passed

  for (const Limits& limits : {Limits{near, none}, Limits{none, near}}) {
    is_refused("an iterator", [&] {
      evict();
      const std::unique_ptr<Iterator> at(db->NewIterator(with(limits)));
      at->Seek(key);
      CHECK(at->Valid() == at->status().ok());
      return at->status();
    });
    is_refused("MultiGet", [&] {
      evict();
      std::vector<std::string> found;
      const auto all = db->MultiGet(with(limits), {Slice(key), Slice(key)}, &found);
      // The page may have come in between the two.
      CHECK(all[0].ok() || all[1].ok() || all[0].code() == all[1].code());
      return all[0];
    });
  }
  // A refusal is no error of the database.
  CHECK_OK(db->Put(WriteOptions(), "another", value));
  CHECK_OK(db->Flush(FlushOptions()));
  CHECK_OK(get(db.get(), {none, none}));
  CHECK_OK(db->Close());
  printf("ok\n");
  return 0;
}
